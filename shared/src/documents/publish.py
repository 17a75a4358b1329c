"""Writes the documents that are made from the contracts: ``python -m documents.publish``.

``docs/schemas/<Model>.json``, ``docs/asyncapi.json``, ``docs/openapi.json``, ``docs/settings.md``
and ``docs/kafka-acls.md`` are generated, and what ``documents.monitoring`` makes.
``docs/schemas/examples/`` has a record of each topic, written by hand.
``docs/schemas/released/<version>/`` is what readers of a released version rely on: its schemas, its
topics and, in ``golden/``, its records.

``--check`` writes nothing and fails when a document is stale or a change breaks a released version.
``--release VERSION`` adds what is there now to the released versions.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from muster.contracts.acls import as_table
from rest.api import build as openapi

from documents import asyncapi, schemas, settings_page
from documents.compatibility import breaks
from documents.monitoring import files as monitoring

ACLS = """\
# Who may do what on Kafka

Generated from the table of topics; [kafka.md](kafka.md) shows how to apply it. All else is denied.
Services and agents may also read the configuration of the topics that they use (DescribeConfigs).
`agent-<node>` stands for one user for each node. Kafka's rights distinguish topics, not keys.

"""
SETTINGS = Path("cli/src/cli/deploy/known_settings.py")
"""`muster deploy check` knows settings by it: the command line imports no service."""
FIX = "run `make generate` and commit what it writes"


def generated(docs: Path) -> dict[Path, str]:
    """Every generated file with its text."""
    made = {
        docs / "schemas" / f"{model.__name__}.json": schemas.document(model)
        for model in schemas.published_models()
    }
    made[docs / "asyncapi.json"] = asyncapi.document(version("muster-shared"), examples(docs))
    made[docs / "openapi.json"] = openapi.document()
    files = {path: _text(content) for path, content in made.items()}
    files[docs / "settings.md"] = settings_page.page()
    files[docs.parent / SETTINGS] = settings_page.known()
    files[docs / "kafka-acls.md"] = ACLS + as_table(["<node>"])
    return files | monitoring.generated(docs.parent)


def examples(docs: Path) -> dict[str, Any]:
    """The example records, by topic."""
    folder = docs / "schemas" / "examples"
    return {path.stem: _json(path) for path in sorted(folder.glob("*.json"))}


def stale(docs: Path) -> list[str]:
    """What is not as it would be generated now."""
    made = generated(docs)
    problems = [
        f"{path} is stale: {FIX}"
        for path, text in made.items()
        if not path.is_file() or path.read_text() != text
    ]
    left = sorted(set((docs / "schemas").glob("*.json")) - made.keys())
    left += monitoring.left(docs.parent, made)
    return problems + [f"{path} is generated no more: remove it" for path in left]


def broken(docs: Path) -> list[str]:
    """What readers of released versions could not read any more."""
    now = {model.__name__: schemas.document(model) for model in schemas.published_models()}
    problems: list[str] = []
    for released in sorted((docs / "schemas" / "released").glob("*/")):
        for path in sorted(released.glob("*.json")):
            if path.name == "topics.json":
                problems += _lost_topics(path)
            elif path.stem not in now:
                problems.append(f"{path.stem} of {released.name} is gone")
            else:
                found = breaks(_json(path), now[path.stem])
                problems += [f"{path.stem} of {released.name}: {problem}" for problem in found]
    return problems


def _lost_topics(path: Path) -> list[str]:
    now = _models()
    return [
        f"topic {topic} of {path.parent.name}: carried {model}, carries {now.get(topic)}"
        for topic, model in _json(path).items()
        if now.get(topic) != model
    ]


def _models() -> dict[str, str]:
    """The name of each topic's model."""
    return {name: topic.model.__name__ for name, topic in schemas.PUBLISHED.items()}


def release(docs: Path, name: str) -> None:
    """Keep the present contracts as a released version.

    Raises FileExistsError where there is one of this name.
    """
    folder = docs / "schemas" / "released" / name
    folder.mkdir(parents=True)
    (folder / "golden").mkdir()
    for model in schemas.published_models():
        (folder / f"{model.__name__}.json").write_text(_text(schemas.document(model)))
    (folder / "topics.json").write_text(_text(_models()))
    for topic, record in examples(docs).items():
        (folder / "golden" / f"{topic}.json").write_text(_text(record))


def _text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m documents.publish", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the documents are")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where needed")
    parser.add_argument("--release", metavar="VERSION", help="keep the present as released")
    arguments = parser.parse_args()
    docs: Path = arguments.docs
    if not arguments.check:
        for path, text in generated(docs).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if arguments.release:
        release(docs, arguments.release)
    advice = "a breaking change is a new type beside the old one"
    problems = stale(docs) + [f"{problem} ({advice})" for problem in broken(docs)]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
