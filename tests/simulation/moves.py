"""What is advised, done on a cluster: cells by their addresses, and gangs that are asked anew."""

from dataclasses import replace

from scheduler.domain.core.advising import Advice
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.model import Decision, Gang, Restored, Role
from scheduler.domain.core.occupants import Spot
from scheduler.domain.core.wishes import Wish


def spots_of(cluster: Cluster, wish: Wish) -> dict[str, Spot]:
    """All complete cells of the type, by address."""
    chain, found = wish.chain, list[Spot]()
    for cell in chain.cells[max(wish.level, chain.node_level)]:
        if cell.is_complete and wish.level >= chain.node_level:
            found.append(Spot(cell))
        elif wish.level < chain.node_level:
            assert cell.slot is not None
            parts = cell.slot.shape.parts[wish.level]
            found += [Spot(cell, part) for part in parts if part.is_complete]
    return {spot.address: spot for spot in found}


def is_free(cluster: Cluster, spot: Spot) -> bool:
    """Nobody uses it or is charged any of it, and it is bound to nobody."""
    used = any(
        mask & (cluster.hardware.used(state) | state.charged)
        for state, mask in spot.leaves(cluster.hardware)
    )
    return not used and spot.is_free(cluster.hardware)


def asked_anew(cluster: Cluster, name: str) -> Gang:
    """A running gang, and what it wants with what it has grown by."""
    live, extras = cluster.gangs[name], cluster.extras.get(name, {})
    roles = []
    for role in live.gang.roles:
        own = tuple(pod for pod in role.pods if pod in live.pods)
        more = tuple(pod for pod in role.pods if pod in extras)
        least = len(own) if more else None
        if own or more:
            roles.append(Role(role.kind, own + more, role.name, least))
    return replace(live.gang, roles=tuple(roles))


def nobody_waits(cluster: Cluster) -> None:
    """Who waits does so no longer."""
    for name in list(cluster.queue.gangs):
        live = cluster.gangs.get(name)
        if live is None:
            continue
        if live.extra_of is not None or not (live.pods or live.strangers):
            cluster.release(name)
        else:
            for role in live.waiting:
                for pod in role.pods:
                    cluster.release_pod(name, pod)


def move(cluster: Cluster, nodes: set[str], names: list[str]) -> list[Decision]:
    """These nodes are cordoned, these gangs stopped, and asked for again."""
    for node in nodes:
        cluster.nodes.cordon(node)
    gangs = [asked_anew(cluster, name) for name in names]
    for name in names:
        cluster.release(name)
    for each in gangs:
        cluster.request(each)
    return run_cycle(cluster, cluster.now + 1.0)


def restored(cluster: Cluster, found: Advice) -> None:
    """The gangs that move have the very places that were told."""
    gangs = [(asked_anew(cluster, each.live.id), each) for each in found.moves if not each.is_extra]
    for each in found.moves:
        if each.is_extra and each.live.extra_of is not None:
            cluster.release_pod(each.live.extra_of, next(iter(each.before)))
        else:
            cluster.release(each.live.id)
    for one, each in gangs:
        places = tuple(each.after.values())
        there = {place.pod for place in places}
        roles = tuple(
            replace(role, pods=tuple(pod for pod in role.pods if pod in there), least=None)
            for role in one.roles
        )
        kept = replace(one, roles=tuple(role for role in roles if role.pods))
        again = Restored(kept, places, started_at=cluster.now, lender=each.lender)
        cluster.restore(again, cluster.now)
