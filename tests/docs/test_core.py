"""The map of the Scheduler's core has every module, once, and nothing that is not there."""

import re
from importlib import import_module
from pathlib import Path

from scheduler.domain import core

ROOT = Path(__file__).parents[2]
FOLDER = Path(core.__path__[0])
MAP = (FOLDER / "README.md").read_text()
MODULES = {path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"}


def test_each_module_of_the_core_is_on_its_map() -> None:
    named = re.findall(r"^\| `(\w+)` \| .", MAP, re.MULTILINE)
    assert sorted(named) == sorted(MODULES)


def test_the_map_names_what_the_core_has() -> None:
    missing = []
    for module, *names in (name.split(".") for name in re.findall(r"`(\w+(?:\.\w+)+)`", MAP)):
        if module in MODULES and names != ["py"]:
            found: object = import_module(f"scheduler.domain.core.{module}")
            for name in names:
                fields = getattr(found, "__annotations__", {})
                if not hasattr(found, name) and name not in fields:
                    missing.append(f"{module}.{'.'.join(names)}")
                    break
                found = getattr(found, name, None)
    assert missing == []


def test_the_map_names_tests_that_are_there() -> None:
    paths = re.findall(r"`(tests/[\w/]+\.py)`", MAP)
    assert [path for path in paths if not (ROOT / path).exists()] == []
