"""The one state that decisions are made from: messages of the Launcher and the nodes, and the core.

The core decides in seconds of a clock that outlives this process (``at``). Nodes and messages use
this process's own clock (``now``).

A released pod that is not shown free yet is a gang of its own for the core, preempted already. The
core waits for its GPUs, which use no quota of its virtual cluster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import assert_never

from muster.contracts.gangs import GangEnd, GangRequest, PodRelease
from muster.contracts.model import Reason
from muster.contracts.node_orders import Order
from muster.contracts.nodes import NodeReport

from scheduler.domain.adoption import Listed, is_listed, joined, look
from scheduler.domain.configured import Setting
from scheduler.domain.core import model
from scheduler.domain.core.config import REQUEUE_S, ClusterConfig, Policy
from scheduler.domain.core.interface import HEALTH, PREEMPTING, Core
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    GangClass,
    Grown,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Refused,
    Reserved,
    Restored,
    Shrunk,
    Upgraded,
)
from scheduler.domain.core_rows import CoreRows
from scheduler.domain.cores import core_of
from scheduler.domain.given import Given
from scheduler.domain.known import Changes, KnownGang, known_of
from scheduler.domain.ledger import Ledger, Rows
from scheduler.domain.notices import Notices, note_preemption, published_reason, until_released
from scheduler.domain.placements import LEFT, Hold, Placement, left
from scheduler.domain.plans import Plan, made
from scheduler.domain.requests import (
    Asked,
    Downgrade,
    Jobs,
    gang_of,
    key_of,
    kind_of,
    placement_of,
    roles_of,
    run_of,
    saved_at,
    surplus_of,
)
from scheduler.domain.rules import Rules
from scheduler.domain.run_times import RunTimes, shape_of
from scheduler.domain.seen import Seen


class State:
    """``made_of``: the cluster's plan. ``gangs``: those that are not over. ``withheld``: gangs of
    which a node reports pods without a placement, with their wait reasons; None: the next cycle
    looks.
    """

    def __init__(
        self, rules: Rules, file: ClusterConfig | None = None, policy: Policy | None = None
    ) -> None:
        """``file`` None: the nodes make the cluster. Raises ConfigError if it is invalid."""
        self.rules = rules
        self.policy = policy or Policy()
        self.ledger = Ledger(rules)
        self.gangs: dict[str, Asked] = {}
        self.jobs = Jobs()
        self.orders: dict[str, Order] = {}
        self.notices = Notices(rules)
        self.run_times = RunTimes(rules.run_times)
        self.made_of = self.plan(file)
        self.core = core_of(self.made_of.config(), rules.policies)
        self.given = Given(self.core)
        self.core_rows = CoreRows()
        self.has_more = False
        self.withheld: dict[str, Reason | None] = {}
        self._seen = Seen()
        self._changes = Changes(Rows())
        self._seen.doubt(self.given, self.ledger)

    # Configuration and orders of operators.

    @property
    def file(self) -> ClusterConfig | None:
        """The cluster's file, None: the nodes make it."""
        return self.made_of.file

    def plan(self, file: ClusterConfig | None, setting: Setting | None = None) -> Plan:
        """The plan of the cluster as of now."""
        return Plan(file, self.ledger.sizes(), self.policy, self.ledger.version, setting)

    def change(self, file: ClusterConfig | None, at: float) -> None:
        """Use another file. Raises ConfigError, and then nothing has changed."""
        plan = self.plan(file)
        self.adopt(plan, made(self.core, plan, at))

    def adopt(self, plan: Plan, core: Core, line: str | None = None) -> None:
        """Use the built core: running gangs keep their places. ``line``: its event, if known."""
        self.made_of = plan
        self.core = core
        self.given.change(core, line)
        self._changes.kept.update(name for name in core.gang_ids() if name in self.gangs)
        self.core_rows.doubt()
        self._seen.forget()
        self._seen.doubt(self.given, self.ledger)
        self.ledger.touched.update(self.ledger.nodes, self.orders)

    def keep_config(self, plan: Plan) -> None:
        """The nodes' change is invalid: it is not tried again."""
        self.made_of = replace(self.made_of, version=plan.version)

    @property
    def is_outdated(self) -> bool:
        """Nodes have another size than in the cluster's plan."""
        return self.made_of.version != self.ledger.version

    def order(self, node: str, order: Order) -> None:
        """An operator's order about a node."""
        if order is Order.NONE:
            self.orders.pop(node, None)
        else:
            self.orders[node] = order
        self.ledger.touched.add(node)

    # Messages of nodes.

    def report(self, report: NodeReport, now: float) -> None:
        """A node's report."""
        self.ledger.report(report, now)

    def lose(self, name: str, now: float, at_ms: int = 0) -> list[str]:
        """The node's lease ran out: its pods are lost for good. Returns their gangs."""
        return self._lose(self.ledger.lose(name, now, at_ms))

    def lose_forgotten(self, name: str, now: float) -> list[str]:
        """The node's agent has lost its journal, and these pods with it. Returns their gangs."""
        return self._lose(self.ledger.lose_forgotten(name, now))

    def _lose(self, lost: Iterable[Hold]) -> list[str]:
        gangs: set[str] = set()
        for hold in lost:
            if hold.is_wanted:
                gang = hold.placement.gang
                self.given.release_pod(gang, hold.pod, is_lost=True)
                self._changes.kept.add(gang)
                gangs.add(gang)
                if gang in self.gangs:
                    self.gangs[gang].has_left(hold.pod)
        return sorted(gangs & self.gangs.keys())

    def remove(self, name: str) -> bool:
        """A lost node was removed. False where it can't be removed yet."""
        self._seen.nodes.pop(name, None)
        return self.ledger.remove(name)

    # Messages of the Launcher.

    def request(self, request: GangRequest, now: float, at: float) -> None:
        """Apply the Launcher's complete message about a gang."""
        gang = self.gangs.get(request.gang)
        if gang is None:
            gang = self.gangs[request.gang] = Asked(request)
            self.jobs.add(gang)
        asks = {ask.pod: ask for ask in request.pods}
        ends = {end.pod: end for end in request.released}
        before, gang.asks, gang.request = gang.asks, asks, request
        self._expect(gang)
        self._requeue(gang, at)
        for pod in before:
            if pod not in asks:
                self._drop(gang, pod, ends.get(pod), now, at)
        if not asks:
            if request.end is not GangEnd.REQUEUED:
                self.given.release(gang.name)
            self.jobs.remove(self.gangs.pop(gang.name))
            self.withheld.pop(gang.name, None)
            self._changes.ended[gang.name] = request
            if run := run_of(gang, at):
                self._changes.runs[gang.name] = run
            return
        if (saved := saved_at(request, at)) is not None:
            self.given.checkpointed(gang.name, saved)
        if asks.keys() - before.keys() or (gang.is_refused and asks.keys() != before.keys()):
            self._want(gang)

    def _requeue(self, gang: Asked, at: float) -> None:
        """The platform failed the attempt, and another follows: what is healthy of its cells is
        kept for that one, and other cells for the rest.
        """
        request = gang.request
        if request.end is not GangEnd.REQUEUED or request.pods:
            return
        for pod in request.failed:
            self.given.release_pod(gang.name, pod, is_lost=True)
        self.given.requeue(gang.name, at + REQUEUE_S)

    def _expect(self, gang: Asked) -> None:
        """A new gang's expected run time: passed to the core once, and kept."""
        if gang.shape is not None or not gang.request.pods:
            return
        gang.shape = shape_of(gang.request.pods)
        if gang.request.expected_s is None:
            estimate = self.run_times.estimate(key_of(gang.request, gang.shape))
            gang.expected_s = None if estimate is None else float(estimate.high_s)
        self._changes.kept.add(gang.name)

    def _want(self, gang: Asked) -> None:
        """The gang has waiting pods, and some of them are new."""
        if gang.is_refused:
            gang.is_refused, gang.published_reason = False, None
        if is_listed(self.ledger, gang):
            self._take_out(gang)
            return
        waiting = [
            (pod, kind_of(ask)) for pod, ask in gang.asks.items() if not self.ledger.hold_of(pod)
        ]
        surplus = surplus_of(gang.asks.values())
        if self.core.gang(gang.name) is None:
            roles = roles_of(waiting, surplus)
            if any(role.least != 0 for role in roles):
                self.given.request(gang_of(gang.request, roles, gang.expected_s))
            return
        known = pods_of(self.core, gang.name)
        new = [(pod, kind) for pod, kind in waiting if pod not in known]
        if needed := roles_of(each for each in new if each[0] not in surplus):
            self.given.grow(gang.name, needed)
        if more := roles_of(each for each in new if each[0] in surplus):
            self.given.want_more(gang.name, more)

    def _drop(self, gang: Asked, pod: str, end: PodRelease | None, now: float, at: float) -> None:
        """The Launcher does not list a pod any more."""
        hold, known = self.ledger.hold_of(pod), self.core.gang(gang.name)
        gang.has_left(pod)
        if known is not None and known.started_at is not None:
            gang.ran_from = known.started_at
        if hold is None:
            self.given.release_pod(gang.name, pod)
            return
        is_same = end is not None and end.journal == hold.placement.journal
        floor = end.report_revision if end is not None and is_same else 0
        is_free = self.ledger.release(pod, floor, now)
        self.given.release_pod(gang.name, pod)
        self._changes.kept.add(gang.name)
        if not is_free and not hold.is_lost:
            self._linger(hold, at)

    def _linger(self, hold: Hold, at: float) -> None:
        """The core waits for a released pod's resources."""
        self.given.restore(left(hold.placement, at), at)

    # The cycle.

    def is_settled(self, now: float) -> bool:
        """The cluster is known, and has not grown for a while."""
        if not self.made_of.is_honoured:  # a setting was left out: nothing is refused for it
            return False
        if self.file is not None:
            return True
        grown_at = self.ledger.grown_at
        return grown_at is not None and now - grown_at >= self.rules.settle_s

    @property
    def is_under_way(self) -> bool:
        """The last cycle is unfinished: nothing may change before its end."""
        return self.core.is_under_way

    def decide(
        self, now: float, at: float, is_late: Callable[[], bool] = lambda: False
    ) -> list[Decision]:
        """A cycle, or the rest of the one under way; of wait reasons only those that are due. It
        stops at its bound of gangs, or when ``is_late``.
        """
        if not self.is_under_way:
            self.ledger.expire(now)
            listed = self._listed()
            self._adopt_pods(listed.adoptable, now, at)
            self._withhold(listed.reasons)
        is_settled, steps = self.is_settled(now), count(1)

        def is_enough(_decided: int) -> bool:
            step = next(steps)
            return step > 1 and (step > self.rules.cycle_gangs or is_late())

        found = self.given.run(at, is_enough, is_settled=is_settled)
        decisions = [decision for decision in found if self._follow(decision, now, at)]
        for name, reason in self.notices.due(
            self.gangs,
            self.reason_of,
            now,
            is_settled=is_settled,
            is_under_way=self.is_under_way,
        ):
            core = model.Reason(reason.code, reason.text, reason.numbers)
            decisions.append(Deferred(name, core))
        self.has_more = self.is_under_way or (is_settled and bool(self.notices.unpublished))
        return decisions

    def _carry(self, now: float) -> None:
        """Pass the ledger's changes to the core."""
        ledger, given = self.ledger, self.given
        for hold in (*ledger.freed, *ledger.overdue):
            given.release(LEFT + hold.pod)
        ledger.freed, ledger.overdue = [], []
        self._seen.carry_all(given, ledger, self.orders, now)

    # Running pods without a stored placement.

    def _listed(self) -> Listed:
        return look(self.ledger, self.gangs, self.core)

    def _adopt_pods(self, found: Mapping[str, Sequence[Placement]], now: float, at: float) -> None:
        """Adopt these pods where they run, as if placed there. The ledger's changes reach the core
        before it restores their gangs.
        """
        for name, places in found.items():
            self._take_out(self.gangs[name])
            for place in places:
                self.ledger.put(place)
        self._carry(now)
        for name, places in found.items():
            gang, before = self.gangs[name], self._placed(name)
            self.given.release(name)
            self.given.restore(joined(gang, before, places, at), at)
            self._note_placed(gang)
            self._want(gang)
            self._changes.kept.add(name)
            self._changes.adopted[name] = tuple(place.pod for place in places)

    def _take_out(self, gang: Asked) -> None:
        """Withhold the waiting pods of the gang from the core."""
        self.withheld[gang.name] = None
        state = self.core.gang(gang.name)
        if state is None:
            return
        if state.started_at is None:
            self.given.release(gang.name)
            return
        known = pods_of(self.core, gang.name)
        for pod in gang.asks:
            if pod in known and self.ledger.hold_of(pod) is None:
                self.given.release_pod(gang.name, pod)

    def _withhold(self, reasons: Mapping[str, Reason]) -> None:
        """These gangs wait until their pods are adopted or gone; other gangs no longer do."""
        for name in sorted(reasons.keys() - self.withheld.keys()):
            self._take_out(self.gangs[name])
        back = sorted(self.withheld.keys() - reasons.keys())
        self.withheld = dict(reasons)
        for name in back:
            gang = self.gangs.get(name)
            if gang is not None and not gang.is_refused:
                self._want(gang)
        for name, reason in reasons.items():
            if self.gangs[name].published_reason != reason:
                self.notices.unpublished[name] = None

    def _follow(self, decision: Decision, now: float, at: float) -> bool:
        """Note a decision; returns whether it is to be published."""
        gang = self.gangs.get(decision.gang)
        if gang is None:
            return False
        self._changes.kept.add(gang.name)
        match decision:
            case Placed(pods=places):
                gang.preemption = gang.downgrade = None
                gang.leaving.clear()
                self._place_all(gang, places)
            case Grown(pods=places):
                self._place_all(gang, places)
            case Deferred():
                self.notices.unpublished[gang.name] = None
                return False
            case Refused(reason=reason):
                gang.is_refused, gang.published_reason = True, published_reason(reason, self.gangs)
            case Preempted() | Shrunk():
                note_preemption(gang, decision, self.gangs)
            case Downgraded(for_gang=for_gang):
                gang.downgrade = Downgrade(for_gang, at)
            case Upgraded():
                gang.downgrade = None
                for place in self.core.exported(gang.name).places:
                    self.ledger.charge(place.pod, place.charged)
            case Reserved():
                self.notices.note(gang, self.reason_of(gang.name) or gang.published_reason, now)
            case PreemptionCancelled():
                pass
            case _:
                assert_never(decision)
        return True

    def _place_all(self, gang: Asked, places: Iterable[PodPlace]) -> None:
        self._note_placed(gang)
        for place in places:
            self._place(gang, place)

    def _note_placed(self, gang: Asked) -> None:
        """Its wait reason is void."""
        gang.published_reason = None
        self.notices.unpublished.pop(gang.name, None)

    def _place(self, gang: Asked, place: PodPlace) -> None:
        report = self.ledger.nodes[place.node].report
        assert report is not None
        self.ledger.put(placement_of(gang, place, report))

    # Questions.

    def reason_of(self, gang: str) -> Reason | None:
        """The gang's wait reason, as of the last time that it was sought; None if it has none."""
        return self._reason(gang, self.core.questions.reason_of)

    def reason_now(self, gang: str) -> Reason | None:
        """The same as of the last cycle."""
        return self._reason(gang, self.core.questions.reason_now)

    def _reason(self, gang: str, ask: Callable[[str], model.Reason | None]) -> Reason | None:
        if gang in self.withheld:
            return self.withheld[gang]
        reason = ask(gang)
        if reason is None:
            return None
        if reason.code == PREEMPTING:
            return until_released(reason)
        if not self.core.forest.machines:
            text = "No node has reported yet. The gang starts when enough nodes have reported."
            return Reason(code=HEALTH, text=text, numbers=dict(reason.numbers))
        return published_reason(reason, self.gangs, self.core.questions.starts_at(gang))

    def is_waiting(self, gang: str) -> bool:
        """Its pods wait for placement, have a nominated one, or are withheld from the core."""
        state = self.core.gang(gang)
        return gang in self.withheld or (state is not None and state.is_waiting)

    def downgrade_of(self, gang: str) -> Downgrade | None:
        """Since when and for which gang it runs without its cells; None if it has them."""
        state = self.core.gang(gang)
        if state is None or state.gang_class is not GangClass.DOWNGRADED:
            return None
        return self.gangs[gang].downgrade

    def _placed(self, gang: str) -> Restored | None:
        return None if self.core.gang(gang) is None else self.core.exported(gang)

    def known(self, name: str) -> KnownGang:
        """All that is to be stored of a gang."""
        return known_of(self.gangs[name], self._placed(name), self.downgrade_of(name))

    def take_changes(self) -> Changes:
        """The changes since the last call."""
        changes, self._changes = self._changes, Changes(Rows())
        changed = self.core.rows.take_changed()
        changes.kept |= changed.gangs
        changes.rows = self.ledger.take_rows()
        changes.kept &= self.gangs.keys()
        changes.histories = self.run_times.note(changes.runs.values())
        changes.core = self.core_rows.take(self.core, changed)
        return changes


def pods_of(core: Core, gang: str) -> set[str]:
    """All pods of a gang that the core knows."""
    state = core.gang(gang)
    assert state is not None
    wanted = (pod for role in (*state.waiting, *state.elastic) for pod in role.pods)
    return {*wanted, *(place.pod for place in core.exported(gang).places)}
