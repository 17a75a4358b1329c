"""Checks that pages and published texts keep plain words: ``python -m documents.words``.

It reads every Markdown page, and the texts of settings, metrics, contracts and APIs in the source.
A sentence has at most 30 words, and no word that the glossary has replaced. The newest commits'
subjects have at most 72 characters.
"""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

MOST_WORDS = 30
MOST_SUBJECT_CHARACTERS = 72
SUBJECTS = 50
"""How many of the newest commits are checked; merges don't count."""

REPLACED = {
    r"books": "accounting",
    r"encores?": "delayed repeat",
    r"sa(y|ys|id|ying) ((it|them|that|so|this) )?again": "republish",
    r"said": "published, stated",
    r"told": "notified, informed, published",
    r"hear(s|d|ing)?": "receive",
    r"spoken?|speak(s|ing)?": "send, publish",
    r"one-way words?": "broadcast message",
    r"(last|latest|newest|stray) words?": "message",
    r"null records?": "tombstone",
    r"bur(y|ies|ied)": "dead-letter",
    r"mend(s|ed|ing)?": "fix",
    r"lines? of (the |a )?(queue|gangs|jobs)": "workload class",
    r"(first|next) (in|of) (its|the|a|each) (line|queue)": "first of its workload class",
    r"kept cells?|cells? (is |are |was |were )?kept": "reserved cells",
    r"(may|can|could|who|nobody|others) pass(es|ed)?": "backfill",
    r"reserved places?": "nominated placement",
    r"guests?": "opportunistic or downgraded gang",
    r"(has|have|had|having) to leave|leaves? for|made to leave": "is preempted",
    r"g(ive|ives|ave|iven|iving) back": "release",
    r"loans?": "borrowed capacity",
    r"deaf": "cut off from the bus",
    r"strangers?": "orphaned, foreign",
    r"rooms": "modules",
    r"the house": "layout",
    r"whoever|whom": "name the actor",
    r"who waits?": "a waiting gang",
    r"so long": "while, or a noun with a number",
}
"""Each pattern of old vocabulary with its replacement. Patterns match whole words of prose."""

RENAMED = {
    r"nurser(y|ies)": "fork server",
    r"books-drifted": "accounting-drifted",
}
"""Names that match in code, too."""

UNFINISHED: frozenset[str] = frozenset()
"""Files that are still to be rewritten. The check skips them, and fails on one that is clean."""

_OLD = [
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), fix, pattern in RENAMED)
    for pattern, fix in {**RENAMED, **REPLACED}.items()
]
_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?][)\"'*_]*(?=\s+[^a-z\s])")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Passage(NamedTuple):
    """A paragraph, heading, list item, table cell or string, and the line it begins at."""

    line: int
    text: str


def pages(root: Path) -> Iterator[tuple[Path, list[Passage]]]:
    """Every checked file under ``root`` with its passages."""
    for path in _files(root, "*.md"):
        yield path, list(markdown(path.read_text()))
    for path in _files(root, "*.py"):
        if _is_published(path.relative_to(root)):
            yield path, list(python(path.read_text()))


def _files(root: Path, pattern: str) -> list[Path]:
    """The files in folders that hold the project's own work, not what was installed there."""
    return sorted(
        path
        for path in root.rglob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _is_published(path: Path) -> bool:
    """Whether users or operators read the file's texts: in answers, schemas, pages or metrics."""
    if "src" not in path.parts or "store" in path.parts:
        return False
    return path.name in ("settings.py", "metrics.py", "asyncapi.py") or bool(
        {"api", "contracts"} & set(path.parts)
    )


def markdown(text: str) -> Iterator[Passage]:
    """The passages of a Markdown page. Blocks of code are left out."""
    for token in _MARKDOWN.parse(text):
        if token.type == "inline" and token.map is not None:
            parts = []
            for child in token.children or ():
                match child.type:
                    case "text":
                        parts.append(child.content)
                    case "code_inline":
                        parts.append(f"`{child.content}`")
                    case "softbreak" | "hardbreak":
                        parts.append("\n")
            yield Passage(token.map[0] + 1, "".join(parts))


def python(source: str) -> Iterator[Passage]:
    """The docstrings and other strings of more than two words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if len(text.split()) > 2:
                for passage in markdown(inspect.cleandoc(text)):
                    yield Passage(node.lineno + passage.line - 1, passage.text)


def faults(passages: Iterable[Passage]) -> Iterator[tuple[int, str]]:
    """Each fault with its line: the sentence and the fix."""
    for passage in passages:
        for line, sentence in _sentences(passage):
            shown = " ".join(sentence.split())
            prose = _CODE.sub("x", shown)
            count = len(re.findall(r"\S*\w\S*", prose))
            if count > MOST_WORDS:
                yield line, f"{count} words, at most {MOST_WORDS}; divide it: {shown}"
            for pattern, fix, is_name in _OLD:
                for found in pattern.finditer(shown if is_name else prose):
                    yield line, f"old word {found[0]!r}; the new term: {fix}: {shown}"


def _sentences(passage: Passage) -> Iterator[tuple[int, str]]:
    text = passage.text
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        sentence = text[start:end]
        indent = len(sentence) - len(sentence.lstrip())
        yield passage.line + text.count("\n", 0, start + indent), sentence.strip()
        start = end


def problems(root: Path, unfinished: frozenset[str] = UNFINISHED) -> Iterator[str]:
    """What to fix, in one line each: file, line, fault."""
    left = set(unfinished)
    for path, passages in pages(root):
        name = str(path.relative_to(root))
        found = [f"{name}:{line}: {fault}" for line, fault in faults(passages)]
        if name not in unfinished:
            yield from found
        elif found:
            left.discard(name)
    for name in sorted(left):
        yield f"{name}: it is clean or gone; take it out of UNFINISHED in documents/words.py"


def long_subjects(root: Path) -> Iterator[str]:
    """The newest commits with too long a subject. A copy without its history has none."""
    if not (root / ".git").exists():
        return
    log = ["git", "log", "--no-merges", f"-n{SUBJECTS}"]
    done = subprocess.run(
        [*log, "--format=%h %s"], cwd=root, check=True, capture_output=True, text=True
    )
    for entry in done.stdout.splitlines():
        commit, _, subject = entry.partition(" ")
        if len(subject) > MOST_SUBJECT_CHARACTERS:
            yield (
                f"commit {commit}: its subject has {len(subject)} characters, "
                f"at most {MOST_SUBJECT_CHARACTERS}; shorten it: {subject}"
            )


def main() -> None:
    """The command, run in the repository's root."""
    root = Path.cwd()
    found = [*problems(root), *long_subjects(root)]
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
