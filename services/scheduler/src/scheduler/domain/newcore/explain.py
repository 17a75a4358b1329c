"""Why a class waits: the first overlay under which its first would fit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from scheduler.domain.core.model import Reason
from scheduler.domain.core.wording import wanted_of, words_of
from scheduler.domain.newcore.fit import QUOTA, claim
from scheduler.domain.newcore.nodes import Workload
from scheduler.domain.newcore.queue import Sizes, WorkloadClass
from scheduler.domain.newcore.state import State

HEALTH, SHAPE, RESOURCE = "health", "shape", "resource"
NODES_NAMED = 3


class _Asks:
    """A question about classes, asked as seldom as can be: what fits also does if it is smaller,
    what does not neither does if it is larger.
    """

    def __init__(self, ask: Callable[[Workload], bool]) -> None:
        self._ask = ask
        self._yes, self._no = Sizes(), Sizes()

    def fits(self, waiting: WorkloadClass, head: Workload) -> bool:
        """The class's first would fit."""
        if self._no.has_easier(waiting):
            return False
        if self._yes.has_harder(waiting):
            return True
        fits = self._ask(head)
        (self._yes if fits else self._no).add(waiting)
        return fits


class Explainer:
    """Explains classes whose first could not be placed."""

    def __init__(self, state: State) -> None:
        self._state = state

    def reasons(
        self, waiting: Mapping[WorkloadClass, Workload]
    ) -> Iterator[tuple[WorkloadClass, Reason]]:
        """The reason of each class, by its first. The state is as before between two answers."""
        asked = {found: head for found, head in waiting.items() if found.no is not None}
        healthy = self._fitting_if_healthy(asked)
        bare = _Asks(self._fits_bare)
        for found, head in asked.items():
            assert found.no is not None
            if found.no.code == QUOTA:
                yield found, _quota(head, found.no.numbers)
            elif found in healthy:
                yield found, self._health(head)
            elif bare.fits(found, head):
                want = "not enough CPU, memory, ports or counted resources with it"
                text = f"{words_of(head.kinds)}: {want}."
                yield found, Reason(RESOURCE, text, wanted_of(head.kinds))
            else:
                text = f"{words_of(head.kinds)}: no nodes have them free as each pod wants them."
                yield found, Reason(SHAPE, text, wanted_of(head.kinds))

    def _fitting_if_healthy(self, asked: Mapping[WorkloadClass, Workload]) -> set[WorkloadClass]:
        rooms = {
            found: head for found, head in asked.items() if found.no and found.no.code != QUOTA
        }
        if not rooms or not self._state.unwell:
            return set()
        with self._state.trial():
            for slot in list(self._state.unwell):
                self._state.set_good(slot, slot.shape.full)
            asks = _Asks(lambda head: bool(claim(self._state, head)))
            return {found for found, head in rooms.items() if asks.fits(found, head)}

    def _fits_bare(self, head: Workload) -> bool:
        """It would fit if its pods wanted nothing but their GPUs."""
        wants = tuple(
            (self._state.want(want.kind.gpus_alone(), is_charged=want.is_charged), pods)
            for want, pods in head.wants
        )
        return bool(claim(self._state, replace(head, wants=wants)))

    def _health(self, head: Workload) -> Reason:
        names = sorted({slot.node.name for slot in self._state.unwell})
        count = len(names)
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        text = (
            f"It would be placed if all nodes were usable: {nodes} not"
            f" ({', '.join(names[:NODES_NAMED])}). `muster nodes` says why."
        )
        return Reason(HEALTH, text, wanted_of(head.kinds) | {"badNodes": count})


def _quota(head: Workload, numbers: Mapping[str, int]) -> Reason:
    leaves, spare = numbers["leaves"], max(numbers["spare"], 0)
    text = (
        f"{words_of(head.kinds)}: it needs {leaves} GPUs of the quota of"
        f" {head.gang.virtual_cluster}, of which gangs of its priority or higher leave {spare}."
    )
    return Reason(QUOTA, text, wanted_of(head.kinds) | {"leaves": leaves, "spare": spare})
