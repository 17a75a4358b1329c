"""Pages and published texts keep plain words; what is not one is named with its line and fix."""

import subprocess
from pathlib import Path

import pytest
from documents import words

ROOT = Path(__file__).parents[2]

LONG = "One two three four five six seven eight nine ten " * 3 + "more."


def faults(text: str) -> list[tuple[int, str]]:
    return list(words.faults(words.markdown(text)))


def test_this_repository_keeps_plain_words() -> None:
    assert [*words.problems(ROOT)] == []


def test_a_sentence_of_more_than_thirty_words_is_shown_with_its_line() -> None:
    [(line, fault)] = faults(f"# Title\n\nA short one. And\nanother.\n{LONG}\nThe last.\n")
    assert line == 5
    assert fault.startswith("31 words, at most 30; divide it: One two")
    assert fault.endswith("ten more.")


@pytest.mark.parametrize(
    "text",
    [
        "One two three four five six seven eight nine ten " * 3,
        "- " + "Five words are in it.\n- " * 8,
        "| a | b |\n|---|---|\n| " + "word " * 20 + "| " + "word " * 20 + "|",
        f"```\n{LONG} nursery\n```",
        "Run `" + "a b c " * 20 + "` now.",
        "Ask for it, e.g. by " + "one more " * 6 + "word. Then ask again, " + "and again " * 8,
    ],
    ids=["thirty", "items", "cells", "block of code", "code", "two sentences"],
)
def test_short_sentences_pass(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("The topic `books-drifted` has it.", "books-drifted", "accounting-drifted"),
        ("The agent's nursery forks.", "nursery", "fork server"),
        ("Each side says it again.", "says it again", "republish"),
        ("It waits so\nlong as nothing comes.", "so long", "while"),
        ("Whoever reads.", "Whoever", "name the actor"),
    ],
)
def test_an_old_word_is_named_with_the_new_one(text: str, old: str, new: str) -> None:
    assert any(f"'{old}'" in fault and new in fault for _, fault in faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "The first line of the file, word by word.",
        "The runbook has one line for each alert.",
        "There is room for 8 GPUs.",
        "The parser passes the value on.",
        "The log says which pod it was.",
        "A task leaves a file behind.",
    ],
)
def test_common_words_in_their_common_sense_pass(text: str) -> None:
    assert faults(text) == []


def test_strings_of_published_source_are_read_with_their_lines(tmp_path: Path) -> None:
    for name in ("settings.py", "domain.py"):
        path = tmp_path / "services" / "a" / "src" / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '"""A module."""\n\nlease_s = Field(\n    1, description="Who waits, ends."\n)\n'
        )
    [problem] = words.problems(tmp_path, frozenset())
    assert problem.startswith("services/a/src/a/settings.py:4: old word 'Who waits'")


def test_an_unfinished_page_is_skipped_until_it_is_clean(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The nursery\n")
    assert len([*words.problems(tmp_path, frozenset())]) == 1
    assert [*words.problems(tmp_path, frozenset({"page.md"}))] == []
    page.write_text("# The fork server\n")
    [problem] = words.problems(tmp_path, frozenset({"page.md"}))
    assert problem.startswith("page.md: it is clean")


def test_only_new_commits_with_long_subjects_are_named(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *command], cwd=tmp_path, check=True, env={})

    def commit(subject: str) -> None:
        git("commit", "--quiet", "--allow-empty", f"--message={subject}")

    assert [*words.long_subjects(tmp_path)] == []
    git("init", "--quiet")
    commit("feat: " + "o" * 67)
    for _ in range(words.SUBJECTS):
        commit("feat: " + "x" * 66)
    assert [*words.long_subjects(tmp_path)] == []
    commit("feat: " + "y" * 67)
    git("clone", "--quiet", "--depth", "1", f"file://{tmp_path}", "shallow")
    for clone in (tmp_path, tmp_path / "shallow"):
        [problem] = words.long_subjects(clone)
        assert "its subject has 73 characters, at most 72" in problem
