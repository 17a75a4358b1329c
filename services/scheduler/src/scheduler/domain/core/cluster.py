"""The state that decisions are made from: hardware, gangs, who waits. Its methods change it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

from scheduler.domain.core import attainable
from scheduler.domain.core.building import build
from scheduler.domain.core.charges import Charges
from scheduler.domain.core.config import ClusterConfig, Finding
from scheduler.domain.core.downgraded import DowngradedGangs
from scheduler.domain.core.ends import bounds_of
from scheduler.domain.core.extras import (
    adopt,
    exported_extras,
    forget,
    lives_of,
    parted,
    restore_extras,
    wait_no_more,
    without_extras,
)
from scheduler.domain.core.forecast import Forecast
from scheduler.domain.core.freed import Freed
from scheduler.domain.core.groups import Groups
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.holdings import REMNANT, Live, Pod
from scheduler.domain.core.keeping import unreserve
from scheduler.domain.core.kinds import Kinds
from scheduler.domain.core.loans import set_lender
from scheduler.domain.core.model import (
    OPPORTUNISTIC,
    Decision,
    Downgraded,
    Gang,
    GangClass,
    PreemptionCancelled,
    Restored,
    Role,
    joined,
    without,
)
from scheduler.domain.core.nodes import Nodes
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, Rank, ordering_of
from scheduler.domain.core.owning import owner_of
from scheduler.domain.core.prices import Prices
from scheduler.domain.core.protecting import Protection
from scheduler.domain.core.queue import Line, Queue, Shape, key_of
from scheduler.domain.core.reservations import Reservations
from scheduler.domain.core.restoring import carry_over, export, restore
from scheduler.domain.core.saving import Saving
from scheduler.domain.core.stamps import Stamps
from scheduler.domain.core.usage import Usage
from scheduler.domain.core.ways import Ways


class Cluster:
    """Everything that the core knows. Raises ConfigError where the configuration can't be honoured.

    ``blank``: the same hardware, healthy and empty, to ask what could ever be placed.
    ``cycles``: how often `run_cycle` was called, ``at``: when last; ``now``: when that cycle began,
    by which all of it is judged; ``under_way``: the rest of it, to be gone on with.
    ``is_settled``: what can never be placed is refused. ``moved``: gangs that got other cells for
    the same place, until the caller clears it. ``is_explaining``: gangs are told why they wait.
    """

    def __init__(
        self, config: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
    ) -> None:
        forest = build(config)
        self.policy = config.policy
        self.is_keeping = config.policy.is_keeping
        self.policies = policies
        self.ordering = ordering_of(config.policy, policies)
        self.hardware = Hardware(forest)
        self.blank = Hardware(forest)
        self.warnings: tuple[Finding, ...] = tuple(forest.warnings)
        self.gangs: dict[str, Live] = {}
        self.queue = Queue()
        self.downgraded = DowngradedGangs()
        self.charges = Charges(self.hardware, self.gangs)
        self.reservations = Reservations(self.hardware, self.charges, self.set_rank)
        self.stamps = Stamps(self.hardware, self.charges)
        self.prices: dict[tuple[str | None, str, int], Prices] = {}
        self.attainable: dict[attainable.Key, attainable.Attainable] = {}
        self.ways = Ways(self)
        self.extras: dict[str, dict[str, str]] = {}
        self.told_to_leave: set[str] = set()
        self.reserved: set[str] = set()
        self.said: list[Decision] = []
        self.groups = Groups()
        self.can_hold: dict[tuple[str, bool, bool, Shape, frozenset[str] | None], bool] = {}
        self.fits_unwell: dict[tuple[str, Shape, frozenset[str] | None], tuple[int, bool]] = {}
        self.usage = Usage(self.hardware, self.policy, self.ordering)
        self.forecast = Forecast()
        self.freed = Freed()
        self.nodes = Nodes(self.hardware, self.freed)
        self.cycles = 0
        self.now = self.at = 0.0
        self.under_way: Iterator[list[Decision]] | None = None
        self.is_settled = self.is_explaining = True
        self.moved: set[str] = set()
        self.kinds = Kinds()
        self.saving = Saving()
        self.preemptions = Protection(self)

    # Gangs.

    def request(self, gang: Gang, told: str | None = None) -> None:
        """A gang wants its pods. ``told``: the code that it was told before a restart."""
        assert gang.id not in self.gangs, gang.id
        needed, surplus = parted(gang.roles)
        live = self.take_in(gang, self.kinds.of(needed))
        live.surplus = surplus and self.kinds.of(surplus)
        live.told = told
        self.enqueue(live)

    def take_in(self, gang: Gang, waiting: tuple[Role, ...], extra_of: str | None = None) -> Live:
        """A gang is known from now on. ``extra_of``: as `Live` has it."""
        order = self.ordering.order(gang, is_extra=extra_of is not None)
        live = Live(gang, order, owner_of(gang.virtual_cluster), waiting, extra_of=extra_of)
        if self.is_keeping:
            live.apart = bounds_of(gang)
        if self.ordering.has_users:
            live.apart += (gang.user,)
        self.gangs[gang.id] = live
        if gang.job or gang.group is not None:
            self.groups.add(live)
        return live

    def grow(self, gang: str, roles: Sequence[Role], told: str | None = None) -> None:
        """A gang wants more pods, all of these at once or none. ``told``: as with `request`."""
        live = self.gangs.get(gang)
        if live is None:
            return
        self.queue.remove(live)
        unreserve(self, live)
        self.cancel(live)
        pods = {pod for role in roles for pod in role.pods}
        live.gang = replace(live.gang, roles=joined(without(live.gang.roles, pods), roles))
        live.waiting = joined(without(live.waiting, pods), self.kinds.of(roles))
        live.told = told
        self.enqueue(live)

    def withdraw(self, gang: str) -> None:
        """A gang is not wanted any more."""
        self.release(gang)

    def release(self, gang: str) -> None:
        """A gang is over: what it held is free at once. Unknown ones are ignored."""
        if gang in self.extras:
            for extra in list(self.extras[gang].values()):
                self.release(extra)
        live = self.gangs.pop(gang, None)
        if live is None:
            return
        if live.extra_of is not None:
            forget(self, live)
        if live.started_at is None or live.waiting or live.reserved:
            self._give_up(live)
        if live.passed is not None:
            self.reservations.forget(live)
        self.forecast.told.pop(gang, None)
        if self.said:
            self.said = [each for each in self.said if each != Downgraded(gang, None)]
        if live.started_at is not None:
            self.usage.end(live, live.pods.values())
        for pod in list(live.pods.values()):
            self._leave(live, pod)
        self.told_to_leave.discard(gang)
        self.downgraded.discard(gang)
        self.charges.sort_in(live)
        self.charges.priced_anew(live)
        if live.gang.job or live.gang.group is not None:
            self.groups.discard(live)

    def _give_up(self, live: Live) -> None:
        """The gang waits for nothing any more."""
        self.queue.remove(live)
        unreserve(self, live)
        self.cancel(live)

    def checkpointed(self, gang: str, at: float) -> bool:
        """A gang's work up to then is saved. Whether it runs, and had not saved so much."""
        live = self.gangs.get(gang)
        if live is None or live.started_at is None:
            return False
        if at <= (live.checkpointed_at or live.started_at):
            return False
        if self.saving.checkpointed(live, at):
            self.looked_at_anew(live)
        return True

    def release_pod(self, gang: str, pod: str) -> None:
        """One pod is over; with its last pod the gang."""
        live = self.gangs.get(gang)
        if live is None:
            return
        if (extra := self.extras.get(gang, {}).get(pod)) is not None:
            self.release(extra)
            return
        live.surplus = without(live.surplus, (pod,))
        if pod in live.reserved:
            self.cancel(live)
        found = live.pods.get(pod)
        if found is not None:
            self._leave_one(live, found)
        else:
            self._drop_waiting(live, pod)
        if live.strangers:
            live.strangers = tuple(place for place in live.strangers if place.pod != pod)
            for name in [name for name in live.pods if name.startswith(pod + REMNANT)]:
                self._leave_one(live, live.pods[name])
        if not live.strangers and len(live.pods) == len(live.reserved):
            live.started_at = None
        self.looked_at_anew(live)
        if live.pods or live.strangers or adopt(self, live):
            return
        if live.waiting:
            self._begin_anew(live)
        else:
            self.release(gang)

    def _begin_anew(self, live: Live) -> None:
        """A gang of which nothing runs any more: what it still wants waits like any other."""
        self.queue.remove(live)
        self.reservations.forget(live)
        set_lender(self, live, None)
        self.downgraded.discard(live.id)
        live.preempted_until = live.preempted_for = live.gang_class = live.started_at = None
        self.told_to_leave.discard(live.id)
        self.sort_in(live)
        self.enqueue(live)

    def _drop_waiting(self, live: Live, pod: str) -> None:
        if not any(pod in role.pods for role in live.waiting):
            return
        self.queue.remove(live)
        unreserve(self, live)
        live.waiting = without(live.waiting, (pod,))
        self.enqueue(live)

    def sort_in(self, live: Live) -> None:
        """Note by its class who could have to leave for whom."""
        self.charges.sort_in(live)
        self.looked_at_anew(live)

    def looked_at_anew(self, live: Live) -> None:
        """What it costs to let the gang go may be something else now."""
        live.cost = None
        if live.young_until or live.is_protected or self.preemptions.is_busy:
            live.is_protected = self.preemptions.covers(live)
        self.charges.priced_anew(live)
        if self.hardware.changed_nodes.is_read:
            self.hardware.changed_nodes.priced_anew(live.pods.values())

    def _leave_one(self, live: Live, pod: Pod) -> None:
        if live.started_at is not None:
            self.usage.end(live, (pod,))
        self._leave(live, pod)

    def _leave(self, live: Live, pod: Pod) -> None:
        if is_charged := live.is_charged:
            self.charges.count(live, pod, -1)
        self.freed.left_by(pod)
        self.hardware.leave(pod, is_charged=is_charged, is_reserved=pod.name in live.reserved)
        del live.pods[pod.name]
        self.stamps.touch(live.owner)

    def restore(self, restored: Restored, now: float) -> None:
        """A gang that was placed before. Where it has to give up cells that it says it has, it is
        downgraded, and where it can't keep a reservation it waits; the next cycle says so.
        """
        live = self.take_in(restored.gang, ())
        self.restore_live(live, without_extras(restored), now)
        if restored.extra:
            restore_extras(self, live, restored, now)

    def restore_live(self, live: Live, restored: Restored, now: float) -> None:
        """The same for one of which nothing is known yet but what it wants."""
        restore(self, live, restored)
        self.preemptions.began(live, now)
        if live.started_at is not None:
            running = [pod for name, pod in live.pods.items() if name not in live.reserved]
            self.usage.begin(live, running, now)
        if live.is_leaving:
            self.hardware.told_to_leave(live.pods.values())
        self.sort_in(live)
        if not live.reserved:
            self.enqueue(live)

    def exported(self, gang: str) -> Restored:
        """All that is kept of a gang that has places."""
        live = self.gangs[gang]
        return exported_extras(self, live, export(live))

    def settle(self, is_settled: bool) -> None:
        """Whether what can never be placed is refused from now on."""
        if is_settled != self.is_settled:
            self.is_settled = is_settled
            self.queue.added.update(dict.fromkeys(self.queue.lines.values()))

    def changed(self, config: ClusterConfig, now: float) -> Self:
        """The same under another configuration: all that runs stays where it is. This one is only
        read. Raises ConfigError.
        """
        fresh = type(self)(config, self.policies)
        carry_over(self, fresh, now)
        fresh.nodes.draining = self.nodes.draining & fresh.hardware.machines.keys()
        fresh.forecast.carry(self.forecast)
        fresh.cycles, fresh.is_settled, fresh.moved = self.cycles, self.is_settled, self.moved
        fresh.is_explaining = self.is_explaining
        return fresh

    def wakes_at(self) -> float | None:
        """When a cycle is to be run though nothing happens; None: it need not be."""
        found = self.preemptions.next_at(self.reservations.next_at(self.now))
        return found and max(found, self.at)

    # For the cycle.

    def enqueue(self, live: Live) -> None:
        """The gang's pods without a place wait, unless it was told to leave."""
        if live.waiting and not live.is_leaving:
            live.is_paired = bool(self.preemptions.hour.all) and self.preemptions.sets_apart(live)
            self.queue.add(live, key_of(live))

    def cancel(self, live: Live) -> None:
        """What was reserved for the gang is not any more; said by the cycle."""
        if not live.reserved:
            return
        names = live.reserved
        for name in names:
            self._leave(live, live.pods[name])
        live.reserved = ()
        self.reserved.discard(live.id)
        roles = [replace(r, pods=tuple(p for p in r.pods if p in names)) for r in live.gang.roles]
        live.waiting = tuple(role for role in roles if role.pods)
        if not (live.pods or live.strangers or adopt(self, live)):
            live.gang_class = None
        live.told = None
        self.sort_in(live)
        self.said.append(PreemptionCancelled(live.id))

    def rank(self, line: Line) -> Rank:
        """The place of a line's first gang among all that wait, now."""
        return self.rank_of(self.gangs[line.waiting[0][1]])

    def rank_of(self, live: Live) -> Rank:
        """A gang's place among all that wait, now."""
        if not self.ordering.has_users:
            return live.order
        return self.ordering.rank(live.order, self.usage.ranks(live, self.now))

    def tell_to_leave(self, live: Live, for_gang: str | None, until: float) -> None:
        """The gang is to leave; its cells are another's by now."""
        wait_no_more(self, live)
        for extra in lives_of(self, live.id):
            if not extra.is_leaving:
                self.withdraw_cells(extra)
                self.tell_to_leave(extra, for_gang, until)
        self.queue.remove(live)
        live.preempted_until, live.preempted_for = until, for_gang
        live.is_protected = False
        self.told_to_leave.add(live.id)
        self.downgraded.discard(live.id)
        self.hardware.told_to_leave(live.pods.values())
        self.freed.yielded_by(live.pods.values())
        if live.among is self.charges.guests and live.gang.priority > OPPORTUNISTIC:
            self.stamps.touch(live.owner)  # those that may not preempt it may wait for it
        self.sort_in(live)

    def withdraw_cells(self, live: Live) -> None:
        """The gang is about to leave: its cells are free for others of its virtual cluster."""
        if live.is_charged:
            for pod in live.pods.values():
                self.charges.count(live, pod, -1)
                self.hardware.discharge(pod)
            self.stamps.touch(live.owner)

    def downgrade(self, live: Live) -> None:
        """The gang runs on without cells."""
        live.gang_class = GangClass.DOWNGRADED
        set_lender(self, live, None)
        self.downgraded.add(live.id)
        self.freed.yielded_by(live.pods.values())
        self._change_class(live)

    def upgrade(self, live: Live) -> None:
        """The gang has cells again."""
        live.gang_class = GangClass.GUARANTEED
        self.downgraded.discard(live.id)
        for pod in live.pods.values():
            self.charges.count(live, pod, 1)
        self._change_class(live)

    def set_rank(self, live: Live, rank: int, *, is_overdue: bool = False) -> None:
        """The gang has its cells by this rank from now on, if it has any."""
        if live.is_charged:
            for pod in live.pods.values():
                self.charges.count(live, pod, -1)
        live.rank, live.is_overdue = rank, is_overdue
        if live.is_charged:
            for pod in live.pods.values():
                self.charges.count(live, pod, 1)
        self.sort_in(live)

    def _change_class(self, live: Live) -> None:
        self.sort_in(live)
        if live.id in self.queue.gangs:  # what it grows by is of another class now
            self.queue.remove(live)
            self.enqueue(live)
