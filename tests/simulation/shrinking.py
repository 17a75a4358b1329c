"""A failing history made short, and written as a program."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from histories import History, replay
from oracle.hardware import Hardware
from runs import Event, Maker
from scheduler.domain.core.config import ClusterConfig, PhysicalCell

SHRINK_RUNS = 400


def kind_of(problem: str) -> str:
    """A problem without its names and numbers."""
    return "".join(c for c in problem.split("(")[0][:60] if not c.isdigit())


class Shrinker:
    """Tries shorter histories; ``best`` is the shortest that still fails in the same way."""

    def __init__(self, failed: History, make: Maker) -> None:
        self.best = failed
        self._make = make
        self._kind = kind_of(failed.problems[0])
        self._runs = 0

    def run(self) -> History:
        """Fewer events, then less of a cluster, then fewer events again."""
        self._events()
        while any(self._try(config, self.best.events) for config in self._smaller()):
            pass
        self._events()
        return self.best

    def _try(self, config: ClusterConfig, events: tuple[Event, ...]) -> bool:
        self._runs += 1
        if self._runs > SHRINK_RUNS:
            return False
        try:
            got = replay(config, events, self._make, self.best.judges)
        except Exception:
            return False
        if not any(kind_of(problem) == self._kind for problem in got.problems):
            return False
        self.best = replace(got, seed=self.best.seed)
        return True

    def _events(self) -> None:
        size = max(1, len(self.best.events) // 2)
        while self._runs < SHRINK_RUNS:
            start, before = 0, len(self.best.events)
            while start < len(self.best.events):
                events = self.best.events
                if not self._try(self.best.config, events[:start] + events[start + size :]):
                    start += size
            if size == 1 and len(self.best.events) == before:
                return
            size = max(1, size // 2)

    def _smaller(self) -> Iterator[ClusterConfig]:
        config = self.best.config
        if any(event[0] == "change" for event in self.best.events):
            return
        if config.nodes:
            yield replace(config, nodes={})
        for number in range(len(config.physical_cells)):
            cells = config.physical_cells
            yield replace(config, physical_cells=cells[:number] + cells[number + 1 :])
        for name, vc in config.virtual_clusters.items():
            others = {other: at for other, at in config.virtual_clusters.items() if other != name}
            yield replace(config, virtual_clusters=others)
            for number in range(len(vc.cells)):
                less = replace(vc, cells=vc.cells[:number] + vc.cells[number + 1 :])
                yield replace(config, virtual_clusters={**config.virtual_clusters, name: less})
        for name in config.nodes:
            yield replace(config, nodes={k: v for k, v in config.nodes.items() if k != name})


def shrink(failed: History, make: Maker) -> History:
    """The history with as few events and as little of a cluster as still fail in the same way."""
    return Shrinker(failed, make).run()


def script(failed: History) -> str:
    """A history as text that `replay` takes."""
    lines = [f"# seed {failed.seed}", f"config = {short(failed.config)}", "events = ["]
    lines += [f"    {short(event)}," for event in failed.events]
    lines += ["]", *(f"# {problem}" for problem in failed.problems)]
    return "\n".join(lines)


def short(value: Any) -> str:
    """Like repr, without fields that have their default, and types that no cell has."""
    if isinstance(value, ClusterConfig):
        used = {name for top in value.physical_cells for name in Hardware(value).types_of(top.type)}
        types = {name: t for name, t in value.cell_types.items() if name in used}
        cells = tuple(_plain(cell, types) for cell in value.physical_cells)
        value = replace(value, cell_types=types, physical_cells=cells)
    if is_dataclass(value) and not isinstance(value, type):
        shown = [
            f"{f.name}={short(getattr(value, f.name))}"
            for f in fields(value)
            if f.repr
            and getattr(value, f.name)
            != (f.default_factory() if callable(f.default_factory) else f.default)
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {short(at)}" for key, at in value.items()) + "}"
    return repr(value)


def _plain(cell: PhysicalCell, types: dict[str, Any]) -> PhysicalCell:
    """The same cell with names of nodes alone, where its type says the rest."""
    children = tuple(_plain(child, types) for child in cell.children or ())
    plain = replace(cell, children=children or None)
    known = types.get(cell.type)
    if known is None or not children:
        return plain
    if len(children) != known.count or any(child.children or child.pin for child in children):
        return plain
    if any(child.index is not None for child in children):
        return plain
    if known.is_node:
        return replace(plain, children=None)
    if all(types.get(child.type) is None or not child.name for child in children):
        names = tuple(name for child in children for name in child.nodes or ())
    else:
        names = tuple(str(child.name) for child in children)
    return replace(plain, children=None, nodes=names or None)
