"""Who was tried: where a gang fits a pod does that wants no more than one of its pods, and where a
pod does not fit no gang does of which one wants as much.
"""

from collections.abc import Iterable, Sequence

from scheduler.domain.core.aside import stamp_of
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.kinds import wants_as_much
from scheduler.domain.core.model import Kind
from scheduler.domain.core.queue import Group, GroupKey, Shape, Stamp

Seen = Sequence[tuple[Group, Stamp]]
"""What could help, and the stamps under which nothing did."""


class Tried:
    """By gangs' kin, all that may be in the same places as things are. ``_vain``: shapes that were
    tried in vain, ``_least``: the least kinds of those of one pod with GPUs; ``_room``: shapes
    for which there was room, ``_most``: their kinds with GPUs.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._vain: dict[object, dict[Shape, Seen]] = {}
        self._least: dict[object, dict[Kind, Seen]] = {}
        self._room: dict[object, set[Shape]] = {}
        self._most: dict[object, dict[Kind, None]] = {}

    @property
    def is_empty(self) -> bool:
        """Nobody was tried in vain."""
        return not self._vain

    def is_vain(self, kin: object, shape: Shape) -> bool:
        """Such a gang can't be placed, as long as nothing changes that could help."""
        shapes = self._vain.get(kin)
        if shapes is None:
            return False
        seen = shapes.get(shape)
        if seen is not None and not self._is_helped(seen):
            return True
        return any(
            wants_as_much(kind, less) and not self._is_helped(seen)
            for less, seen in self._least.get(kin, {}).items()
            for kind, _ in shape
        )

    def note_vain(self, kin: object, shape: Shape, groups: Iterable[GroupKey] = ()) -> None:
        """Such a gang was tried in vain; ``groups``: those of which something could help it."""
        helped_by = (self.cluster.queue.groups[name] for name in groups)
        seen = [(group, stamp_of(self.cluster, group)) for group in helped_by]
        self._vain.setdefault(kin, {})[shape] = seen
        if (only := _only(shape)) is not None:
            least = self._least.setdefault(kin, {})
            for more in [each for each in least if wants_as_much(each, only)]:
                del least[more]
            least[only] = seen

    def fits(self, kin: object, shape: Shape) -> bool:
        """Such a gang surely can be placed; nothing has changed since others were noted."""
        room = self._room.get(kin)
        if room is None or shape in room:
            return room is not None
        only = _only(shape)
        return only is not None and any(wants_as_much(more, only) for more in self._most[kin])

    def note_fitting(self, kin: object, shape: Shape) -> None:
        """There was room for such a gang."""
        self._room.setdefault(kin, set()).add(shape)
        self._most.setdefault(kin, {}).update((kind, None) for kind, _ in shape if kind.gpus)

    def _is_helped(self, seen: Seen) -> bool:
        """Something that could help has changed since."""
        return any(stamp_of(self.cluster, group) != stamp for group, stamp in seen)


def _only(shape: Shape) -> Kind | None:
    """The kind of its only pod, if that wants GPUs."""
    kind, pods = shape[0]
    return kind if len(shape) == 1 and pods == 1 and kind.gpus else None
