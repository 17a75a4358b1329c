"""What if gangs were stopped and asked anew, with some cells taken by nobody: done, looked at,
undone. They are placed as a cycle would place them that had nobody else to place, at nobody's cost.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from scheduler.domain.core.admitting import may_be_guest, reserved_shares
from scheduler.domain.core.borrowing import may_borrow, seek_loan
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.extras import lives_of, wanted
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.model import GangClass, PodPlace, Role
from scheduler.domain.core.occupants import Spot, is_within
from scheduler.domain.core.removing import without_all
from scheduler.domain.core.seeking import Seeker, seeker_of
from scheduler.domain.core.shortages import quota_short

SEARCH_STEPS = 100
"""In one search in every way."""

ANEW = "\n\n"
"""After the gang's id, of the one that is asked anew: what it holds now is noted by its own."""


def gpus_of(cluster: Cluster, live: Live) -> int:
    """With what it has grown by."""
    return live.gpus + sum(each.gpus for each in lives_of(cluster, live.id))


def lost_gpu_s(live: Live, now: float) -> float:
    """The work that is lost where it has to begin anew from what it saved last; what it has grown
    by leaves without any loss.
    """
    if live.extra_of is not None:
        return 0.0
    return max(now - live.saved_ms / 1_000, 0.0) * (live.gpus or 1)


class Restart:
    """One gang stopped, with all that it has grown by. ``places``: where it would begin anew;
    what it can do without may have none; ``lender``: in whose quota, if not its own.
    """

    def __init__(self, cluster: Cluster, live: Live) -> None:
        self.cluster = cluster
        self.live = live
        self.places: dict[str, PodPlace] = {}
        self.lender: str | None = None
        self._seeker: Seeker | None = None
        grown = [each for each in lives_of(cluster, live.id) if each.pods]
        self.before = {
            name: pod.place() for each in (live, *grown) for name, pod in each.pods.items()
        }
        self._was = live.pods, live.gang_class, live.waiting, live.surplus
        self._owned = live.gang, live.lender, live.owner, live.rank
        roles, self._away = self._roles(), ExitStack()
        self._away.enter_context(without_all(cluster, (live, *grown)))
        for state in (state for each in (live, *grown) for state in each.states()):
            state.lifted = 0  # free like all else; nobody leaves for it
        live.waiting, live.surplus = roles
        live.pods, live.gang_class = {}, None
        live.gang = replace(live.gang, id=live.id + ANEW)
        live.set_lender(None)

    def _roles(self) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
        """What it can't start without, and the rest."""
        live, extras = self.live, self.cluster.extras.get(self.live.id, {})
        if live.extra_of is not None:
            return live.gang.roles, ()
        found = (
            tuple(
                replace(role, pods=pods, least=None)
                for role in live.gang.roles
                if (pods := tuple(pod for pod in role.pods if pod in some))
            )
            for some in (live.pods, extras)
        )
        needed, surplus = found
        return needed, surplus

    def place(self) -> bool:
        """As `admitting.attempts` would, but for whom that costs something."""
        live = self.live
        if live.surplus:
            needed = live.waiting
            live.waiting = tuple(replace(role, least=None) for role in wanted(live))
            try:
                if self._seek(is_guest=live.is_guest):
                    return True
            finally:
                live.waiting = needed
        if not live.is_guest and not quota_short(self.cluster, live) and self._seek(is_guest=False):
            return True
        with reserved_shares(self.cluster, live):
            return may_be_guest(live) and self._seek(is_guest=True)

    def _seek(self, *, is_guest: bool) -> bool:
        live = self.live
        seeker = self._seeker = seeker_of(self.cluster, live, is_guest=is_guest)
        seeker.search_steps = SEARCH_STEPS
        if not seeker.place(live.waiting):
            return False
        self._take(seeker, is_guest=is_guest)
        return True

    def borrow(self) -> bool:
        """What has no place in its own virtual cluster may have one in another's idle quota."""
        live = self.live
        found = None
        if live.gang.is_borrowing and live.extra_of is None and may_borrow(live):
            found = seek_loan(self.cluster, live)
        if found is None:
            return False
        self.lender, seeker = found
        self._seeker = seeker
        live.set_lender(self.lender)
        self._take(seeker, is_guest=False)
        return True

    def _take(self, seeker: Seeker, *, is_guest: bool) -> None:
        cluster, live = self.cluster, self.live
        self.places = {pod.name: pod.place() for pod in seeker.pods}
        live.pods = {pod.name: pod for pod in seeker.pods}
        live.gang_class = GangClass.OPPORTUNISTIC if is_guest else GangClass.GUARANTEED
        if not is_guest:
            for pod in seeker.pods:
                cluster.charges.count(live, pod, 1)

    def leave(self) -> None:
        """It has no place again; those that were placed after it have none by now."""
        if self._seeker is None:
            return
        if self.live.is_charged:
            for pod in self._seeker.pods:
                self.cluster.charges.count(self.live, pod, -1)
        self._seeker.undo()

    def undo(self) -> None:
        """As it was before; everything done since has been undone."""
        live = self.live
        live.pods, live.gang_class, live.waiting, live.surplus = self._was
        live.gang, live.lender, live.owner, live.rank = self._owned
        self._away.close()


def undo_restarts(restarts: Sequence[Restart]) -> None:
    """The last first: all places, then what was there before."""
    for restart in reversed(restarts):
        restart.leave()
    for restart in reversed(restarts):
        restart.undo()


@contextmanager
def closed(hardware: Hardware, spots: Sequence[Spot]) -> Iterator[None]:
    """Nobody may take anything of these cells for the moment."""
    masks: dict[int, int] = {}
    for spot in spots:
        for state, mask in spot.leaves(hardware):
            masks[state.slot.number] = masks.get(state.slot.number, 0) | mask
    states = [hardware.states[number] for number in masks]
    before = [(state, state.usable) for state in states]
    machines = {s.machine.number: s.machine for s in states if is_within(s, masks)}
    flags = [(machine, machine.is_cordoned) for machine in machines.values()]
    for machine in machines.values():
        machine.is_cordoned = True
    for state in states:
        state.usable &= ~masks[state.slot.number]
        hardware.refresh(state)
    try:
        yield
    finally:
        for machine, is_cordoned in flags:
            machine.is_cordoned = is_cordoned
        for state, usable in before:
            state.usable = usable
            hardware.refresh(state)
