"""Pods that gangs can do without: they start without them, grow by them into idle cells, one by
one, and give them back before anybody is killed.

Each is a gang of its own for the core, below all others of its virtual cluster, with the id of its
gang, `EXTRA`, and its own name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.domain.core.holdings import REMNANT, Live, Pod
from scheduler.domain.core.loans import set_lender
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    ExtraPod,
    GangClass,
    PodPlace,
    Reason,
    Restored,
    Role,
    joined,
    without,
)

if TYPE_CHECKING:
    from scheduler.domain.core.cluster import Cluster

NO_ROOM = Reason("", "No cells are idle for it.", {})
"""Of pods by which gangs are to grow, to whom nothing is told."""

EXTRA = "\n"
"""In the id of such a gang; no other gang's has it."""


def parted(roles: Sequence[Role]) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
    """Pods that a gang can't start without, and the others."""
    for role in roles:  # faster than `any`
        if role.least is not None:
            break
    else:
        return tuple(roles), ()
    needed = (replace(role, pods=role.pods[: role.least], least=None) for role in roles)
    others = (
        replace(role, pods=role.pods[role.least :], least=None)
        for role in roles
        if role.least is not None
    )
    return without(needed, ()), without(others, ())


def wanted(live: Live) -> tuple[Role, ...]:
    """All that a waiting gang wants, with how many of each role are enough."""
    if not live.surplus:
        return live.waiting
    left, found = list(live.surplus), list[Role]()
    for role in live.waiting:
        more = next((r for r in left if (r.name, r.kind) == (role.name, role.kind)), None)
        if more is not None:
            left.remove(more)
            role = replace(role, pods=(*role.pods, *more.pods), least=len(role.pods))
        found.append(role)
    return (*found, *(replace(role, least=0) for role in left))


def add_extra(cluster: "Cluster", live: Live, role: Role, pod: str) -> Live:
    """A pod of a role, by which a gang that runs grows if it can."""
    own = Role(role.kind, (pod,), role.name)
    gang = replace(live.gang, id=f"{live.id}{EXTRA}{pod}", roles=(own,), is_lazy=False)
    extra = cluster.take_in(gang, (own,), extra_of=live.id)
    if live.gang.priority > OPPORTUNISTIC:
        extra.rank = OPPORTUNISTIC
    cluster.extras.setdefault(live.id, {})[pod] = extra.id
    return extra


def spawn(cluster: "Cluster", live: Live) -> None:
    """A gang has started without some of its pods: it is to grow by them."""
    surplus, live.surplus = live.surplus, ()
    for role in surplus:
        want(cluster, live, role)


def want(cluster: "Cluster", live: Live, role: Role) -> None:
    """A gang that runs wants more pods, as many of them as can be had without cost."""
    for pod in role.pods:
        cluster.enqueue(add_extra(cluster, live, role, pod))


def forget(cluster: "Cluster", extra: Live) -> None:
    """A pod by which a gang had grown, or was to grow, is over."""
    assert extra.extra_of is not None
    known = cluster.extras[extra.extra_of]
    del known[extra.id.partition(EXTRA)[2]]
    if not known:
        del cluster.extras[extra.extra_of]


def of_same_gang(cluster: "Cluster", live: Live) -> set[str]:
    """Of a pod by which a gang is to grow: the gang, and what it has grown by."""
    if live.extra_of is None:
        return set()
    return {live.extra_of, *cluster.extras[live.extra_of].values()}


def hand_over(cluster: "Cluster", pod: Pod, live: Live) -> Pod:
    """A pod that has its place is another gang's from now on."""
    hardware, versions = cluster.hardware, cluster.hardware.versions()
    bindings, is_charged = pod.bindings, bool(pod.bindings)
    for binding in bindings:  # so that the cells stay bound meanwhile
        binding.users[live.id] = binding.users.get(live.id, 0) + 1
    hardware.leave(pod, is_charged=is_charged, is_reserved=False)
    same = replace(pod, gang=live.id, bindings=bindings)
    hardware.enter(same, is_charged=is_charged, is_reserved=False)
    for binding in bindings:
        binding.users[live.id] -= 1
    hardware.unchanged(versions)
    return same


def adopt(cluster: "Cluster", live: Live) -> bool:
    """Nothing of a gang runs any more but what it had grown by: it can't do without that now."""
    extra = next(filter(_has_place, lives_of(cluster, live.id)), None)
    if extra is None:
        return False
    pods, live.strangers = list(extra.pods.values()), extra.strangers
    extra.pods.clear()
    for pod in pods:  # several, where its place is not there as it was
        if extra.is_charged:
            cluster.charges.count(extra, pod, -1)
        live.pods[pod.name] = hand_over(cluster, pod, live)
    live.started_at, live.gang_class = extra.started_at, extra.gang_class
    set_lender(cluster, live, extra.lender)
    live.preempted_until, live.preempted_for = extra.preempted_until, extra.preempted_for
    for pod in live.pods.values() if live.is_charged else ():
        cluster.charges.count(live, pod, 1)
    if live.is_leaving:
        cluster.told_to_leave.add(live.id)
        cluster.hardware.told_to_leave(live.pods.values())
    cluster.sort_in(live)
    cluster.release(extra.id)
    if live.is_leaving:
        cluster.queue.remove(live)
        wait_no_more(cluster, live)
    return True


def wait_no_more(cluster: "Cluster", live: Live) -> None:
    """A gang that is to leave grows no more: what it waits for it wants when it starts again."""
    for extra in lives_of(cluster, live.id):
        if not extra.pods:
            live.surplus = joined(live.surplus, extra.waiting)
            cluster.release(extra.id)


def pod_of(extra: Live) -> str:
    """The name of its only pod, wherever what of its place is there."""
    return extra.gang.roles[0].pods[0]


def _has_place(extra: Live) -> bool:
    return bool(extra.pods or extra.strangers)


def want_more(cluster: "Cluster", gang: str, roles: Sequence[Role]) -> None:
    """A gang is to grow by as many of these pods as can be had without cost."""
    live = cluster.gangs.get(gang)
    if live is None:
        return
    pods = {pod for role in roles for pod in role.pods}
    spare = [replace(role, least=0) for role in roles]
    live.gang = replace(live.gang, roles=joined(without(live.gang.roles, pods), spare))
    roles = cluster.kinds.of([replace(role, least=None) for role in roles])
    if live.started_at is None or live.is_leaving:
        live.surplus = joined(live.surplus, roles)
    else:
        for role in roles:
            want(cluster, live, role)


def lives_of(cluster: "Cluster", gang: str) -> list[Live]:
    """The pods by which a gang has grown or is to grow."""
    return [cluster.gangs[extra] for extra in cluster.extras.get(gang, {}).values()]


def without_extras(restored: Restored) -> Restored:
    """What is kept of a gang, as if it had not grown."""
    extra = {each.pod for each in restored.extra}
    own = tuple(place for place in restored.places if place.pod not in extra)
    return replace(restored, places=own, extra=())


def pods_of(cluster: "Cluster", live: Live) -> set[str]:
    """All of a gang that have a place or are wanted."""
    roles = (*live.waiting, *live.surplus)
    return {
        *live.pods,
        *(pod for role in roles for pod in role.pods),
        *cluster.extras.get(live.id, ()),
    }


def restore_extras(cluster: "Cluster", live: Live, restored: Restored, now: float) -> None:
    """Pods by which a gang had grown before."""
    places = {place.pod: place for place in restored.places}
    roles = {pod: role for role in restored.gang.roles for pod in role.pods}
    for each in restored.extra:
        extra = add_extra(cluster, live, roles[each.pod], each.pod)
        extra.waiting = ()
        cluster.restore_live(
            extra,
            Restored(
                extra.gang,
                (places[each.pod],),
                each.gang_class,
                restored.cells,
                each.started_at,
                each.preempted_until,
                each.preempted_for,
                lender=each.lender,
            ),
            now,
        )
        cluster.downgraded.discard(extra.id)
        cluster.said = [said for said in cluster.said if said.gang != extra.id]


def exported_extras(cluster: "Cluster", live: Live, restored: Restored) -> Restored:
    """What is kept of a gang, with the pods by which it has grown."""
    extras = list(filter(_has_place, lives_of(cluster, live.id)))
    if not extras:
        return restored
    cells = {*restored.cells, *(use for each in extras for use in each.cells())}
    return replace(
        restored,
        places=(*restored.places, *(place for each in extras for place in _places_of(each))),
        cells=tuple(sorted(cells, key=lambda use: (use.cell, use.quota))),
        extra=tuple(
            ExtraPod(
                pod_of(each),
                each.started_at or 0.0,
                each.gang_class,
                each.preempted_until,
                each.preempted_for,
                each.lender,
            )
            for each in extras
        ),
    )


def _places_of(extra: Live) -> Iterator[PodPlace]:
    is_charged = extra.gang_class is GangClass.GUARANTEED
    for pod in extra.pods.values():
        if REMNANT not in pod.name:
            yield pod.place(is_charged=is_charged)
    yield from extra.strangers
