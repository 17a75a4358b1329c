"""A gang in some chains alone: cells are kept for at most one of a virtual cluster in each."""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import Role
from scheduler.domain.core.reservation import Leaves, Reservation


def own_chains(cluster: Cluster, owner: str, types: Sequence[str] = ()) -> set[str]:
    """Those in which a virtual cluster has quota: of these GPU types, or of all."""
    quotas = cluster.hardware.owning.quotas.get(owner, ())
    return {quota.chain.name for quota in quotas if not types or quota.chain.leaf in types}


def kept_chains(cluster: Cluster, reservations: Iterable[Reservation]) -> set[str]:
    """Those with cells of some reservations."""
    return {chain for each in reservations for chain in chains_of(cluster, each.leaves)}


def chains_of(cluster: Cluster, leaves: Leaves) -> set[str]:
    """Those with these leaves."""
    states = cluster.hardware.states
    return {states[number].slot.chain.name for number in leaves}


def has_no_chain(cluster: Cluster, live: Live, taken: set[str]) -> bool:
    """In all chains in which some of its pods can be cells are kept for others."""
    return any(
        own_chains(cluster, live.owner, role.kind.gpu_types) <= taken
        for role in live.waiting
        if role.kind.pin is None
    )


@contextmanager
def beside(cluster: Cluster, live: Live, taken: set[str]) -> Iterator[None]:
    """The gang wants no GPUs of the chains that are taken, for the moment."""
    before, chains = (live.waiting, live.gang), cluster.hardware.forest.chains.values()
    if taken:
        free = {chain.leaf for chain in chains if chain.name not in taken}
        live.waiting = tuple(_of_types(cluster, role, free) for role in live.waiting)
        if any(chain.leaf in free for chain in chains if chain.name in taken):
            nodes, allowed = _nodes_beside(cluster, taken), live.gang.allowed_nodes
            nodes = nodes if allowed is None else nodes & allowed
            live.gang = replace(live.gang, allowed_nodes=nodes)
    try:
        yield
    finally:
        live.waiting, live.gang = before


def _nodes_beside(cluster: Cluster, taken: set[str]) -> frozenset[str]:
    """Machines of which no GPU is in a chain that is taken."""
    machines = cluster.hardware.machines.values()
    return frozenset(
        machine.name
        for machine in machines
        if not any(state.slot.chain.name in taken for state in machine.slots)
    )


def _of_types(cluster: Cluster, role: Role, types: Container[str]) -> Role:
    """On GPUs of these types alone, where it may have some of them."""
    kind = role.kind
    wanted = kind.gpu_types or cluster.hardware.gpu_types
    left = tuple(each for each in wanted if each in types)
    if not kind.gpus or kind.pin is not None or not left or len(left) == len(wanted):
        return role
    return replace(role, kind=replace(kind, gpu_types=left))
