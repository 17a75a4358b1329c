"""Who was tried: where a gang fits a pod does that wants no more than one of its pods, and where a
pod does not fit no gang does of which one wants as much. What it costs may be more, though: so this
holds where no budget of preemptions could be too small.
"""

from collections.abc import Iterable, Sequence

from scheduler.domain.core.aside import stamp_of
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.kinds import wants_as_much
from scheduler.domain.core.model import Kind
from scheduler.domain.core.passing import passed_by
from scheduler.domain.core.queue import Group, GroupKey, Shape, Stamp, kin_of

Seen = Sequence[tuple[Group, Stamp]]
"""What could help, and the stamps under which nothing did."""


class Tried:
    """By gangs' kin, all that may be in the same places as things are, however long they run, and
    whose they are. ``_vain``: shapes that were tried in vain, ``_least``: the least kinds of those
    of one pod with GPUs; ``_room``: shapes for which there was room, ``_most``: their kinds with
    GPUs.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._vain: dict[object, dict[Shape, Seen]] = {}
        self._least: dict[object, dict[Kind, Seen]] = {}
        self._room: dict[object, set[Shape]] = {}
        self._most: dict[object, dict[Kind, None]] = {}

    def is_vain(self, live: Live) -> bool:
        """The gang can't be placed, as long as nothing changes that could help."""
        if not self._vain:
            return False
        kin, shape = self._wish(live)
        seen = self._vain.get(kin, {}).get(shape)
        if seen is not None and not self._is_helped(seen):
            return True
        least = self._least.get(kin)
        if not least or self._may_cost_too_much(live):
            return False
        return any(
            wants_as_much(kind, less) and not self._is_helped(seen)
            for less, seen in least.items()
            for kind, _ in shape
        )

    def note_vain(self, live: Live, groups: Iterable[GroupKey] = ()) -> None:
        """The gang was tried in vain; ``groups``: those of which something could help it."""
        kin, shape = self._wish(live)
        helped_by = (self.cluster.queue.groups[name] for name in groups)
        seen = [(group, stamp_of(self.cluster, group)) for group in helped_by]
        self._vain.setdefault(kin, {})[shape] = seen
        only = _only(shape)
        if only is not None and not self._may_cost_too_much(live):
            least = self._least.setdefault(kin, {})
            for more in [each for each in least if wants_as_much(each, only)]:
                del least[more]
            least[only] = seen

    def fits(self, live: Live) -> bool:
        """The gang surely can be placed; nothing has changed since others were noted."""
        kin, shape = self._wish(live)
        if shape in self._room.get(kin, ()):
            return True
        only = _only(shape)
        if only is None or self._may_cost_too_much(live):
            return False
        return any(wants_as_much(more, only) for more in self._most.get(kin, ()))

    def note_fitting(self, live: Live) -> None:
        """There was room for the gang."""
        kin, shape = self._wish(live)
        self._room.setdefault(kin, set()).add(shape)
        self._most.setdefault(kin, {}).update((kind, None) for kind, _ in shape if kind.gpus)

    def _wish(self, live: Live) -> tuple[object, Shape]:
        line = self.cluster.queue.gangs[live.id]
        shape = tuple([(role.kind, len(role.pods)) for role in live.waiting])
        return (kin_of(line), passed_by(self.cluster, live)), shape

    def _may_cost_too_much(self, live: Live) -> bool:
        """Who wants less may cost more gangs of its virtual cluster than may leave yet."""
        left = self.cluster.preemptions.left(live.gang.virtual_cluster)
        return left is not None and left < self.cluster.charges.count_below(live)

    def _is_helped(self, seen: Seen) -> bool:
        """Something that could help has changed since."""
        return any(stamp_of(self.cluster, group) != stamp for group, stamp in seen)


def _only(shape: Shape) -> Kind | None:
    """The kind of its only pod, if that wants GPUs."""
    kind, pods = shape[0]
    return kind if len(shape) == 1 and pods == 1 and kind.gpus else None
