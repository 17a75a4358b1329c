"""The map of the Scheduler's core has every module, once."""

import re
from pathlib import Path

from scheduler.domain import core


def test_each_module_of_the_core_is_on_its_map() -> None:
    folder = Path(core.__path__[0])
    named = re.findall(r"^\| `(\w+)` \| .", (folder / "README.md").read_text(), re.MULTILINE)
    there = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert sorted(named) == sorted(there)
