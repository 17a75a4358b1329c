"""Whether a virtual cluster owns enough for a gang: docs/scheduling.md, `quota`."""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import NEVER


@dataclass(frozen=True, slots=True)
class Shortage:
    """More leaves are wanted than there are ``left`` for a gang: of a pin, or of GPU types (none:
    of all). ``gpus``: of the pods that want them, without what they are charged beyond.
    """

    wanted: int
    left: int
    gpus: int
    pin: str | None = None
    types: tuple[str, ...] = ()


def quota_short(cluster: Cluster, live: Live) -> bool:
    """Its virtual cluster has fewer leaves than it wants, those of lower priority counted in; or
    one of its pods can be nowhere.
    """
    if len(live.waiting) > 1:
        return next(_shortages(cluster, live), None) is not None
    role, hardware = live.waiting[0], cluster.hardware
    wanted = hardware.demands.least_leaves(role.kind) * len(role.pods)
    types, priority = role.kind.gpu_types or hardware.gpu_types, live.gang.priority
    if role.kind.pin is None:
        return wanted > cluster.charges.left_of(live.owner, types, priority)
    return wanted > cluster.charges.left(live, role.kind.pin, types, priority)


def shortage(cluster: Cluster, live: Live) -> Shortage | None:
    """What its virtual cluster has too little of: a role's pin or GPU types, in the order of its
    roles, or else all types.
    """
    if not quota_short(cluster, live):
        return None
    return next(_shortages(cluster, live, counts_all=True), None)


def _shortages(cluster: Cluster, live: Live, *, counts_all: bool = False) -> Iterator[Shortage]:
    """``counts_all``: pods that can be nowhere too, by their GPUs."""
    every, demands = cluster.hardware.gpu_types, cluster.hardware.demands
    wishes: list[tuple[tuple[str | None, tuple[str, ...]], int, int]] = []
    for role in live.waiting:
        kind, least = role.kind, demands.least_leaves(role.kind)
        types = () if kind.pin is not None else every
        if kind.pin is None and kind.gpu_types:
            types = tuple(each for each in every if each in kind.gpu_types)
        leaves = kind.gpus if counts_all and least >= NEVER else least
        wishes.append(((kind.pin, types), leaves * len(role.pods), kind.gpus * len(role.pods)))
    keys = dict.fromkeys(key for key, _, _ in wishes)
    if any(pin is None for pin, _ in keys):
        keys[None, every] = None
    for pin, types in keys:
        some = [wish for wish in wishes if wish[0][0] == pin and set(types).issuperset(wish[0][1])]
        wanted = sum(leaves for _, leaves, _ in some)
        left = cluster.charges.left(live, pin, types, live.gang.priority)
        if wanted > left:
            gpus = sum(count for _, _, count in some)
            yield Shortage(wanted, left, gpus, pin, () if types == every else types)
