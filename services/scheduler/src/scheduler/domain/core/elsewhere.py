"""Whom it costs that an owner's cells are bound elsewhere: where a pod is put without gangs of its
own virtual cluster that are not on its node, but have the quota that it needs.
"""

from collections.abc import Iterable
from itertools import islice

from scheduler.domain.core.binding import Binding
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.ground import Ground
from scheduler.domain.core.holdings import Live, Pod, Price
from scheduler.domain.core.prices import cost_of, price_of

MOVED_LOOKED = 1_024
"""Gangs that are looked at, the smallest first, and pods of theirs, for all pods of a gang at the
most; `MOVED_LOOKED_AT_LEAST` for each.
"""

MOVED_LOOKED_AT_LEAST = 64

MOVED_TRIED = 8
"""Sets of cells without which a place is sought, the cheapest first, at the most."""


def movable(cluster: Cluster, live: Live, ground: Ground, below: Price) -> list[list[Live]]:
    """Sets of gangs that cost less than ``below``, without which as many leaves of their virtual
    cluster's quota may be bound anew as one more pod needs: of single cells that cost least first.
    """
    priority, charges = live.reach, cluster.charges
    if ground.kind.pin is not None or not charges.has_below(live.owner, priority):
        return []
    need = min(need for need in ground.needs if need)
    pods = sum(len(role.pods) for role in live.waiting)
    looked = max(MOVED_LOOKED_AT_LEAST, MOVED_LOOKED // pods)
    own = islice(charges.smallest_below(live.owner, priority), looked)
    cheapest = (each for each in own if _costs_less(each, priority, below))
    charged = (pod for each in cheapest for pod in each.pods.values())
    cheap: list[tuple[Price, int, list[Live], int]] = []
    for binding in _bindings(islice(charged, looked), ground.gpu_type):
        users = [cluster.gangs[gang] for gang in sorted(binding.users)]
        price = price_of(users)
        if price < below and all(_costs_less(each, priority, below) for each in users):
            leaves = sum(mask.bit_count() for _, mask in binding.masks())
            cheap.append((price, len(cheap), users, leaves))
    found: list[list[Live]] = []
    some, held = dict[str, Live](), 0
    for _, _, users, leaves in sorted(cheap):
        some.update((each.id, each) for each in users)
        held += leaves
        if held >= need:
            if price_of(some.values()) < below:
                found.append([*some.values()])
            some, held = {}, 0
            if len(found) == MOVED_TRIED:
                break
    return found


def _costs_less(live: Live, priority: int, below: Price) -> bool:
    """It has to leave for a gang of this priority, and costs less than that."""
    rank, price = cost_of(live)
    return rank < priority and price < below


def _bindings(charged: Iterable[Pod], gpu_type: str) -> Iterable[Binding]:
    """Their bound cells with GPUs of a type, each once."""
    return {
        id(binding): binding
        for pod in charged
        for binding in pod.bindings
        if binding.quota is not None and binding.quota.chain.leaf == gpu_type
    }.values()
