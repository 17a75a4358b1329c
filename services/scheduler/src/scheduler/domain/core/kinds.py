"""Kinds of pods, each once: what was worked out for a gang's is found for another's without a
comparison.
"""

from collections.abc import Sequence

from scheduler.domain.core.machines import KINDS_REMEMBERED
from scheduler.domain.core.model import Kind, Role


class Kinds:
    """Those that gangs have wanted, up to `KINDS_REMEMBERED`."""

    def __init__(self) -> None:
        self._known: dict[Kind, Kind] = {}

    def of(self, roles: Sequence[Role]) -> tuple[Role, ...]:
        """The same roles with the kinds of other gangs that are equal."""
        found = []
        for role in roles:
            kind = self._known.get(role.kind)
            if kind is None:
                if len(self._known) >= KINDS_REMEMBERED:
                    self._known.clear()
                kind = self._known[role.kind] = role.kind
            if kind is not role.kind:  # `replace` takes ten times as long
                role = Role(kind, role.pods, role.name, role.least)
            found.append(role)
        return tuple(found)


def wants_as_much(kind: Kind, less: Kind) -> bool:
    """Wherever there is room for a pod of this kind there is for one of the other."""
    if kind.gpu_types != less.gpu_types or kind.pin != less.pin:
        return False
    if (
        kind.gpus < less.gpus
        or kind.cpu < less.cpu
        or kind.memory_mb < less.memory_mb
        or kind.ports < less.ports
    ):
        return False
    if not less.resources:
        return True
    counted = dict(kind.resources)
    return all(counted.get(name, 0) >= count for name, count in less.resources)
