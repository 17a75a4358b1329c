"""Others leave so that a gang has room: whom that costs, and what becomes of them. Step 4 of
docs/scheduling.md, "Whom it costs".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from scheduler.domain.core.attainable import chargers_there, may_have_room
from scheduler.domain.core.choosing import Chooser
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.leaving import those_near
from scheduler.domain.core.model import OPPORTUNISTIC, Decision, Downgraded
from scheduler.domain.core.prices import PROTECTED_BARE, may_leave, price_of
from scheduler.domain.core.protecting import is_lazy
from scheduler.domain.core.removing import Removal, undo_all, without_all
from scheduler.domain.core.seeking import Seeker, seeker_of
from scheduler.domain.core.starting import preempt, reserve, start_at_once, start_reserved
from scheduler.domain.core.victims import SPARED, choose, nearest, overlapping, without

FEW = 64
"""Guests of whom it is asked how many could have to leave for a gang; and gangs of its own virtual
cluster among which the first is sought that may have to.
"""

LOWERED = 128
"""Gangs that may lose their cells so that fewer have to leave, at the most."""

CHARGERS_LOOKED = 4_096
"""Gangs that have cells where it could be, and are looked at for that, at the most."""


class Room(NamedTuple):
    """Whom room for a gang costs: ``victims`` leave, ``lowered`` lose their cells, if that is
    needed.
    """

    victims: Sequence[Live]
    lowered: Sequence[Live]


def after_victims(cluster: Cluster, live: Live, now: float) -> list[Decision] | None:
    """Place the gang where others have left, or have what was reserved for it; None, with nothing
    changed, where even that does not help.
    """
    if is_alone(cluster, live) or not may_have_room(cluster, live):
        return None
    with cluster.preemptions.kept_off(live):
        growths = _growths_below(cluster, live)
        with cluster.hardware.ahead():
            removals = [Removal(cluster, other, is_growth=True) for other in growths]
            room = _affordable_room(cluster, live)
            undo_all(removals)
    if room is None:
        return None
    losers = [other for other in room.victims if other.reserved]
    losers += _growths_in_the_way(cluster, live, room, [g for g in growths if g not in losers])
    return _make_room(cluster, live, room, losers, now)


def _growths_below(cluster: Cluster, live: Live) -> list[Live]:
    """Gangs that run and have something reserved to grow by, which the gang may take: that costs
    nobody a GPU.
    """
    reserved = (cluster.gangs[gang] for gang in cluster.reserved)
    found = [
        other
        for other in reserved
        if other.started_at is not None and other.owner == live.owner and other.rank < live.reach
    ]
    return sorted(found, key=lambda other: other.id)


def _affordable_room(cluster: Cluster, live: Live) -> Room | None:
    """The cheapest; where that is more than its virtual cluster's budget, such as costs guests
    alone.
    """
    room = _cheapest_room(cluster, live)
    if room is None or not cluster.preemptions.is_too_much(live, room.victims):
        return room
    with cluster.preemptions.guests_alone(live):
        return _cheapest_room(cluster, live)


def _cheapest_room(cluster: Cluster, live: Live) -> Room | None:
    """Who is to leave: the fewest GPUs, be it that others lose their cells beside that."""
    victims = _choose(cluster, live)
    lowered: Sequence[Live] = ()
    if victims is not None:
        room: Room | None = Room(victims, lowered)
    else:
        lowered = protected_lazy(cluster, live)
        room = _lowering(cluster, live, lowered, None)
    if room is None or not room.victims or cluster.hardware.is_late:
        return room
    others = [each for each in islice(lazy_below(cluster, live), LOWERED) if each not in lowered]
    return _lowering(cluster, live, [*lowered, *others], room) if others else room


def _lowering(cluster: Cluster, live: Live, lazy: Sequence[Live], room: Room | None) -> Room | None:
    """The room that costs less, if there is one, where these lose their cells."""
    if not lazy:
        return room
    removals = [Removal(cluster, other, lifts=False) for other in lazy]
    fewer = _choose(cluster, live)
    undo_all(removals)
    if fewer is None or (room is not None and price_of(fewer) >= price_of(room.victims)):
        return room
    if cluster.preemptions.is_too_much(live, fewer):
        return room
    return Room(fewer, [other for other in lazy if other not in fewer])


def protected_lazy(cluster: Cluster, live: Live) -> list[Live]:
    """Who could be downgraded for it, and does not have to leave, as it is protected from it
    (`Protection.kept_off`).
    """
    smallest = list(islice(lazy_below(cluster, live), LOWERED + 1))
    lazy = dict.fromkeys(smallest[:LOWERED])
    if len(smallest) > LOWERED:  # and some that have cells where it could be then
        there = dict.fromkeys(islice(chargers_there(cluster, live), CHARGERS_LOOKED))
        found = filter(partial(_is_lowerable, cluster, live), map(cluster.gangs.__getitem__, there))
        lazy.update(dict.fromkeys(nsmallest(LOWERED, found, key=lambda each: (each.gpus, each.id))))
    return [each for each in lazy if each.is_protected or each.rank >= live.reach]


def _growths_in_the_way(
    cluster: Cluster, live: Live, room: Room, growths: Sequence[Live]
) -> list[Live]:
    """Of what gangs have reserved to grow by as little as is needed: what is on the same nodes, and
    of that only what is in the way.
    """

    def nodes_without(some: Sequence[Live]) -> set[str] | None:
        with cluster.hardware.ahead():
            removals = [Removal(cluster, other, is_growth=True) for other in some]
            seeker, removed = _placed(cluster, live, room)
            nodes = {pod.machine.name for pod in seeker.pods} or None
            seeker.undo()
            undo_all(removals + removed)
        return nodes

    nodes = nodes_without(growths) if growths else None
    if nodes is None or nodes_without(()) is not None:
        return []
    near = [
        other
        for other in growths
        if any(other.pods[pod].machine.name in nodes for pod in other.reserved)
    ]
    taken = near if near and nodes_without(near) is not None else list(growths)
    for other in sorted(taken, key=lambda other: other.order)[:SPARED]:
        rest = [each for each in taken if each is not other]
        if nodes_without(rest) is not None:
            taken = rest
    return taken


def _placed(cluster: Cluster, live: Live, room: Room) -> tuple[Seeker, list[Removal]]:
    """The gang's place without all these."""
    removals = [Removal(cluster, other) for other in room.victims]
    removals += [Removal(cluster, other, lifts=False) for other in room.lowered]
    seeker = seeker_of(cluster, live, is_guest=False)
    seeker.is_thorough = True
    seeker.place(live.waiting)
    return seeker, removals


def room_at_best(
    cluster: Cluster, live: Live, seeker: Seeker, most: int | None = None
) -> Sequence[Pod] | None:
    """Where its pods could be if all were gone who may have to go for it; None: nowhere. ``most``:
    where more may have to go, only what is found pod by pod.
    """
    chooser = Chooser(cluster, live, seeker)
    if chooser.place():
        try:
            pods, victims = tuple(seeker.pods), [removal.live for removal in chooser.removals]
        finally:
            chooser.undo()
        if live.reach > 0 and cluster.preemptions.is_too_much(live, victims):
            with cluster.preemptions.guests_alone(live):
                return room_at_best(cluster, live, seeker, most)
        return pods
    if chooser.is_hopeless() or (most is not None and cluster.charges.count_for(live) > most):
        return None
    others = those_near(cluster, live, cluster.charges.candidates_for(live))
    with without_all(cluster, [other for other in others if not other.is_away]):
        found = tuple(seeker.pods) if seeker.place(live.waiting) else None
        seeker.undo()
    return found


def is_alone(cluster: Cluster, live: Live) -> bool:
    """Nobody could have to leave for it, and without that it is known that it does not fit."""
    is_exact = len(live.waiting) == 1 and cluster.hardware.is_greed_exact(live.owner)
    return is_exact and not cluster.charges.count_for(live)


def lazy_below(cluster: Cluster, live: Live) -> Iterator[Live]:
    """Who could be downgraded for it, the smallest first: who has cells of its GPU types. Nobody
    where no cells of its virtual cluster are to be left for it.
    """
    if live.reach <= OPPORTUNISTIC:
        return iter(())
    below = cluster.charges.smallest_below(live.owner, live.gang.priority)
    return filter(partial(_is_lowerable, cluster, live), below)


def _is_lowerable(cluster: Cluster, live: Live, other: Live) -> bool:
    """It could be downgraded for the gang, and has cells of its GPU types."""
    return (
        other.rank < live.gang.priority
        and other.owner == live.owner
        and other.id not in cluster.reserved
        and is_lazy(cluster, other)
        and any(
            not role.kind.gpu_types or pod.state.gpu_type in role.kind.gpu_types
            for pod in other.pods.values()
            if pod.state is not None and pod.leaves
            for role in live.waiting
        )
    )


@dataclass(slots=True)
class _Tries:
    """`victims.Tries` of a gang. ``is_thorough``: in every way."""

    cluster: Cluster
    live: Live
    is_thorough: bool = False

    def __call__(self, victims: Sequence[Live]) -> list[Live] | None:
        """Who of them is in the gang's way; None: it does not fit without them."""
        removals = [Removal(self.cluster, other) for other in victims]
        seeker = seeker_of(self.cluster, self.live, is_guest=False)
        seeker.is_thorough = self.is_thorough
        needed: list[Live] | None = None
        if seeker.place(self.live.waiting):
            names = overlapping(seeker.pods, victims)
            needed = [other for other in victims if other.id in names]
        seeker.undo()
        undo_all(removals)
        return needed


def _choose(cluster: Cluster, live: Live) -> list[Live] | None:
    """Who is to leave for it, with those away who leave already. No protected gang is among them
    where others suffice.
    """
    victims = _choose_cheapest(cluster, live)
    is_one_pod = len(live.waiting) == 1 and len(live.waiting[0].pods) == 1  # surely the cheapest
    if victims is None or is_one_pod or price_of(victims)[0] < PROTECTED_BARE:
        return victims
    others = those_near(cluster, live, cluster.charges.candidates_for(live))
    some = [each for each in others if price_of((each,))[0] < PROTECTED_BARE]
    tries, are_few = _Tries(cluster, live), len(some) <= FEW
    return choose(None, lambda: some, tries, lambda: cluster.hardware.is_late, are_few=are_few) or (
        victims
    )


def _choose_cheapest(cluster: Cluster, live: Live) -> list[Live] | None:
    found: list[Live] | None = None
    is_least = False
    tries = _Tries(cluster, live)
    chooser = Chooser(cluster, live, seeker_of(cluster, live, is_guest=False))
    if chooser.place():
        found = [removal.live for removal in chooser.removals]
        is_least = _is_least(live, found)
        chooser.undo()
        if _is_cheapest(cluster, live, chooser.seeker, found):
            found.sort(key=lambda other: other.id)
            return nearest(found, chooser.tied.values(), tries)
    elif chooser.is_hopeless():
        return None
    elif cluster.hardware.searches_left:
        cluster.hardware.searches_left -= 1
        tries.is_thorough = True

    @cache
    def candidates() -> list[Live]:
        return those_near(cluster, live, cluster.charges.candidates_for(live))

    are_few = cluster.charges.count_for(live) <= FEW
    victims = choose(
        found,
        candidates,
        tries,
        lambda: cluster.hardware.is_late,
        are_few=are_few,
    )
    is_least = is_least and found is not None and all(each in found for each in victims or ())
    if victims is not None and not are_few and not is_least:
        victims = without(victims, tries, lambda: cluster.hardware.is_late)
        victims.sort(key=lambda other: other.id)
    if not victims or cluster.hardware.is_late:
        return victims
    return nearest(victims, candidates() if are_few else chooser.tied.values(), tries)


def _is_least(live: Live, found: Sequence[Live]) -> bool:
    """Surely none of those without whom it was placed, pod by pod where that costs least, can stay:
    it has one pod, or all of them are guests on one node each, where no more pods fit now.
    """
    roles = live.waiting
    if len(found) < 2 or (len(roles) == 1 and len(roles[0].pods) == 1):
        return True
    least = min(role.kind.gpus for role in roles)
    if not least or any(other.is_charged for other in found):
        return False
    for other in found:
        states = {id(state): state for state in other.states()}
        if len(states) != 1 or any(pod.state is None for pod in other.pods.values()):
            return False
        for state in states.values():
            free = state.usable & ~(state.held | state.charged | state.reserved)
            if free.bit_count() >= least or state.machine.free:
                return False
    return True


def _is_cheapest(cluster: Cluster, live: Live, seeker: Seeker, found: Sequence[Live]) -> bool:
    """One pod that uses all that it is charged, and that one guest is in the way of, was put where
    that costs least: where nodes are bound whole, and none of its own virtual cluster's gangs,
    without whom cells may be bound elsewhere, costs less.
    """
    kind, pods, owning = live.waiting[0].kind, live.waiting[0].pods, cluster.hardware.owning
    if (
        len(live.waiting) > 1
        or len(pods) > 1
        or not kind.gpus
        or kind.pin is not None
        or len(found) > 1
        or any(other.is_charged for other in found)
        or not owning.is_regular
        or live.owner in owning.splitters
        or seeker.ground(kind, seeker.types(kind)[0]).is_loose
    ):
        return False
    lower = list(islice(cluster.charges.smallest_below(live.owner, live.reach), FEW))
    own = next(filter(may_leave, lower), None)
    if own is None:
        return len(lower) < FEW
    if any(cluster.gangs[gang].owner == live.owner for gang in cluster.reserved):
        return False  # what is only reserved costs less
    return price_of(found) <= price_of((own,))


def _make_room(
    cluster: Cluster, live: Live, room: Room, losers: Sequence[Live], now: float
) -> list[Decision]:
    """Tell the victims to leave, and reserve their place; who only had one reserved waits, and
    where that is enough the gang starts.
    """
    for other in losers:
        cluster.cancel(other)
        cluster.enqueue(other)
    started = start_at_once(cluster, live, now) if losers else None
    if started is not None:
        return started
    room = room._replace(victims=[other for other in room.victims if other.pods])
    with cluster.hardware.ahead():
        seeker, removals = _placed(cluster, live, room)
        assert seeker.pods, live.id
        beside = {gang for pod in seeker.pods for gang in pod.machine.pods}
        leaving = [cluster.gangs[gang] for gang in beside & cluster.told_to_leave]
        needed = overlapping(seeker.pods, [*leaving, *room.victims])
        reserve(cluster, live, seeker)
    lost = [r for r in removals if (r.lifts and r.live.id in needed) or not r.spare()]
    decisions: list[Decision] = []
    gone = {removal.live.id for removal in lost if removal.lifts}
    # Pods that a gang can do without before it, so that each is told once.
    for removal in sorted(lost, key=lambda r: (r.lifts, r.live.extra_of is None, r.live.id)):
        removal.settle()
        if removal.lifts:
            decision = preempt(cluster, removal.live, live, now)
            if removal.live.extra_of not in gone:
                decisions.append(decision)
        else:
            cluster.downgrade(removal.live)
            decisions.append(Downgraded(removal.live.id, live.id))
    return decisions + start_reserved(cluster, live, now)
