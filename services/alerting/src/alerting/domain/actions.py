"""What rules do because of alerts: which action is due, held back, or to be taken back.

Each action is decided once for a rule and a time that an alert fires. Limits count nodes
and jobs, not actions, and hold actions back until there is room.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from muster.contracts.alerts import REPAIRS, ActionAnswered, Do, Outcome, subject_of
from muster.contracts.subscriptions import AlertEvent
from muster.counted import counted

from alerting.domain.events import SEVERITIES, Alert, Event, Severity
from alerting.domain.nodes import LOST

ORDERS = frozenset({Do.CORDON, Do.DRAIN})
"""They take a node away from jobs."""
ON_NODES = ORDERS | REPAIRS
FAILURES = {Do.REMEDIATE: "RemediationFailed", Do.RELEASE: "PreflightFailed"}
CORDONED, DRAINED, HELD, DRY_RUN = "NodeCordoned", "NodeDrained", "ActionHeld", "ActionDryRun"
ABOUT_ACTIONS = frozenset({CORDONED, DRAINED, HELD, DRY_RUN})
"""Alerts about what rules do. No rule acts on them, or it would act because it has acted."""
RUNBOOK = "docs/runbook.md#nodes"
FIRES = "An alert of the node fires still."
OVER = "The alert is over."
HOUR = timedelta(hours=1)
ASK_AGAIN = timedelta(seconds=60)


class State(StrEnum):
    """What became of an action so far."""

    HELD = "held"
    REQUESTED = "requested"
    RUNNING = "running"
    FAILED = "failed"
    DRY_RUN = "dry-run"
    DONE = "done"
    REFUSED = "refused"
    UNDO_REQUESTED = "undo-requested"
    UNDONE = "undone"


GOES_ON = frozenset({State.REQUESTED, State.RUNNING})
"""It has no end yet."""
ASKED = GOES_ON | {State.UNDO_REQUESTED}
"""Alerting waits for REST's answer."""
ACTS = ASKED | {State.DONE, State.FAILED}
"""Its target is acted on."""
ACTED = ACTS | {State.UNDONE}
"""It is, or was."""


@dataclass(frozen=True, slots=True)
class ActionRule:
    """An operator's rule: on alerts with one of these names and labels (shell patterns), after they
    have fired for ``after_s``, ``do`` this. ``is_dry_run``: only say so. ``takes_back``: once the
    alert is over. ``timeout_s``: how long its script or preflight job may take.
    """

    name: str
    alerts: tuple[str, ...]
    do: Do
    labels: Mapping[str, str]
    after_s: float = 0.0
    is_dry_run: bool = True
    takes_back: bool = True
    timeout_s: float = 0.0

    def fits(self, alert: Alert) -> bool:
        """Whether an alert is of its kind."""
        return (
            alert.name not in ABOUT_ACTIONS
            and any(fnmatchcase(alert.name, it) for it in self.alerts)
            and all(fnmatchcase(alert.labels.get(name, ""), it) for name, it in self.labels.items())
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The most nodes that actions take in an hour, and at a time as a share of the cluster; one
    node is always allowed at a time, unless ``nodes_per_hour`` is 0. And the most jobs that they
    stop in an hour.
    """

    nodes_per_hour: int = 2
    nodes_share: float = 0.1
    jobs_per_hour: int = 5

    def of(
        self, pods: Mapping[str, int], settles_s: float = 0.0, on_gpus: Collection[str] = ()
    ) -> "Bounds":
        """The same for a cluster whose nodes have so many pods."""
        at_once = max(1, int(self.nodes_share * len(pods)))
        return Bounds(self.nodes_per_hour, at_once, self.jobs_per_hour, pods, settles_s, on_gpus)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most nodes that actions take in an hour, and at a time; the most jobs in an hour.
    ``pods``: how many each node has; ``settles_s``: how long an order has stood before a node
    without pods counts as empty. ``on_gpus``: the nodes with pods that hold GPUs. ``ended``: jobs
    that have ended, as ``user~name``.
    """

    per_hour: int
    at_once: int
    jobs_per_hour: int
    pods: Mapping[str, int] = field(default_factory=dict)
    settles_s: float = 0.0
    on_gpus: Collection[str] = ()
    ended: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``at``: of its newest state; ``asked_at``: when REST was last asked.
    ``timeout_s``: as the rule's. ``takes_back``: the actions whose orders a release ends.
    """

    action: str
    rule: str
    do: Do
    target: str
    fingerprint: str
    starts_at: datetime
    name: str
    summary: str
    state: State
    reason: str
    at: datetime
    asked_at: datetime
    is_dry_run: bool = False
    timeout_s: float = 0.0
    takes_back: tuple[str, ...] = ()


def decide(
    rules: Sequence[ActionRule],
    bounds: Bounds,
    alerts: Iterable[Alert],
    known: Iterable[Action],
    *,
    now: datetime,
) -> tuple[Action, ...]:
    """The actions that are new or change. ``alerts``: all that fire; ``known``: actions of the last
    days or of alerts that fire, and all that are not over.
    """
    firing = {(it.fingerprint, it.starts_at): it for it in alerts}
    lost = {it.labels.get("node", "") for it in firing.values() if it.name == LOST}
    look = _Look(rules, bounds, firing, lost, now)
    for each in known:
        look.take(each)
    look.end_what_is_over()
    look.begin_what_is_due()
    look.release_what_is_well()
    return tuple(look.changed)


@dataclass(slots=True)
class _Look:
    """One look at all actions; ``found`` has them as they are by now, and ``of_targets`` those that
    are no dry runs. No decision about one of them reads all: thousands of alerts may fire at once.
    """

    rules: Sequence[ActionRule]
    bounds: Bounds
    firing: Mapping[tuple[str, datetime], Alert]
    lost: Collection[str]
    now: datetime
    found: dict[str, Action] = field(default_factory=dict)
    of_targets: dict[str, dict[str, Action]] = field(default_factory=dict)
    changed: list[Action] = field(default_factory=list)

    def take(self, action: Action) -> None:
        """It is so by now."""
        self.found[action.action] = action
        if not action.is_dry_run:
            self.of_targets.setdefault(action.target, {})[action.action] = action

    def _note(self, action: Action) -> None:
        before = self.found.get(action.action)
        is_same = before is not None and (before.state, before.reason) == (
            action.state,
            action.reason,
        )
        if not is_same or action.state in ASKED:
            self.take(action)
            self.changed.append(action)

    def _is_over(self, action: Action) -> bool:
        return (action.fingerprint, action.starts_at) not in self.firing

    def _real(self) -> list[Action]:
        return [it for it in self.found.values() if not it.is_dry_run]

    def _of(self, target: str) -> Collection[Action]:
        return self.of_targets.get(target, {}).values()

    def _comes_back(self, action: Action) -> bool:
        return _holds_a_node(action) and self._takes_back(action)

    def _flaps_until(self, node: str) -> datetime | None:
        """It was released within the last hour, so it is not released again yet. The end of one
        action is no release while another one holds the node.
        """
        here = self._of(node)
        held = min((it.at for it in here if _holds_a_node(it)), default=self.now)
        back = (it.at for it in here if it.do in ORDERS and it.state is State.UNDONE)
        return max((it + HOUR for it in back if self.now - HOUR < it < held), default=None)

    def _taken_back(self, action: Action) -> Action:
        until = self._flaps_until(action.target)
        if until is None:
            return _now(action, State.UNDO_REQUESTED, OVER, self.now)
        reason = f"{OVER} {action.target} is released {_hour_after_release(until)}"
        return replace(action, reason=reason)

    def _takes_back(self, action: Action) -> bool:
        return any(it.name == action.rule and it.takes_back for it in self.rules)

    def end_what_is_over(self) -> None:
        """Unanswered requests are repeated; without its alert an action ends."""
        kept_out = {it.target for it in self._real() if _keeps_out(it)}
        for action in list(self.found.values()):
            if action.state in ASKED and action.asked_at <= self.now - ASK_AGAIN:
                self._note(replace(action, asked_at=self.now))
            elif not self._is_over(action) or action.do is Do.RELEASE:
                continue
            elif action.state is State.HELD:
                self._note(_now(action, State.REFUSED, OVER, self.now))
            elif self._comes_back(action) and action.target not in kept_out:
                self._note(self._taken_back(action))

    def begin_what_is_due(self) -> None:
        """Rules act on alerts that have fired for long enough."""
        room = _Room(self.bounds, self.now - HOUR)
        for each in self._real():
            room.note(each)
        for rule in self.rules:
            for alert in self.firing.values():
                due_at = alert.starts_at + timedelta(seconds=rule.after_s)
                if not rule.fits(alert) or due_at > self.now:
                    continue
                before = self.found.get(action_id(rule, alert))
                if before is None or before.state is State.HELD:
                    decided = self._decided(rule, alert, room)
                    self._note(decided)
                    room.note(decided)

    def release_what_is_well(self) -> None:
        """Nodes whose alerts are over are tested."""
        for action in self._real():
            if action.do is Do.RELEASE and action.state is State.HELD:
                self._note(self._released(action))

    def _decided(self, rule: ActionRule, alert: Alert, room: "_Room") -> Action:
        target = target_of(rule.do, alert)
        state, reason = State.REQUESTED, "Requested."
        if target is None:
            what = "node" if rule.do in ON_NODES else "job of a user"
            state, reason = State.REFUSED, f"The alert's labels name no {what}."
        elif rule.do is Do.STOP_JOB and target in self.bounds.ended:
            state, reason = State.REFUSED, f"{target} has ended."
        elif rule.is_dry_run:
            pass
        elif rule.do is Do.RELEASE:
            state, reason = State.HELD, FIRES
        elif rule.do is Do.REMEDIATE and self._is_remediated(rule, target):
            reason = f"The rule remediates {target} because of another alert."
            state = State.REFUSED
        elif (held := self._held(rule, target, room)) is not None:
            state, reason = State.HELD, held
        return Action(
            action=action_id(rule, alert),
            rule=rule.name,
            do=rule.do,
            target=target or "",
            fingerprint=alert.fingerprint,
            starts_at=alert.starts_at,
            name=alert.name,
            summary=alert.summary,
            state=state,
            reason=reason,
            at=self.now,
            asked_at=self.now,
            is_dry_run=rule.is_dry_run,
            timeout_s=rule.timeout_s,
        )

    def _is_remediated(self, rule: ActionRule, node: str) -> bool:
        """The script was asked for since the node was taken."""
        here = self._of(node)
        since = min((it.asked_at for it in here if _takes_a_node(it)), default=None)
        own = [it for it in here if it.rule == rule.name and it.do is Do.REMEDIATE]
        return since is not None and any(it.state in ACTS and it.asked_at >= since for it in own)

    def _released(self, action: Action) -> Action:
        """A release that waits: until no alert for which the node is held fires, its repair has
        ended well, and no pod holds the GPUs that its preflight job takes.
        """
        node, now = action.target, self.now
        here = self._of(node)
        holds = [it for it in here if _holds_a_node(it)]
        failed = next((it for it in here if it.state is State.FAILED), None)
        other = next((it for it in here if it.do in REPAIRS and it.state in GOES_ON), None)
        taken = any(it.do in ORDERS and it.state is State.REQUESTED for it in here)
        keeper = next((it.rule for it in holds if not self._takes_back(it)), None)
        is_known = any(
            it.name == action.rule and it.do is Do.RELEASE and not it.is_dry_run
            for it in self.rules
        )
        if not is_known:
            return _now(action, State.REFUSED, "The rule is gone.", now)
        if not all(self._is_over(it) for it in (action, *holds)):
            return _now(action, State.HELD, FIRES, now)
        if not holds and not taken:
            return _now(action, State.REFUSED, f"No action holds {node}.", now)
        reason = None
        if taken:
            reason = f"{node} is being taken."
        elif keeper is not None:
            reason = f"The rule {keeper} keeps {node}."
        elif failed is not None:
            reason = f"The action {failed.action} ({failed.do}) has failed: a person decides."
        elif other is not None:
            reason = f"The action {other.action} ({other.do}) goes on."
        elif node in self.bounds.on_gpus:
            reason = f"{node} runs pods with GPUs still."
        elif (until := self._flaps_until(node)) is not None:
            reason = f"The preflight job starts {_hour_after_release(until)}"
        if reason is not None:
            return _now(action, State.HELD, reason, now)
        asked = _now(action, State.REQUESTED, "Requested.", now)
        return replace(asked, asked_at=now, takes_back=tuple(sorted(it.action for it in holds)))

    def _held(self, rule: ActionRule, target: str, room: "_Room") -> str | None:
        """Why an action has to wait; None: it does not. A tag does no harm."""
        if rule.do is Do.TAG_JOB:
            return None
        if rule.do is Do.REMEDIATE and (busy := self._is_busy(target)) is not None:
            return busy
        own = [it for it in self._of(target) if it.rule == rule.name and it.state in ACTED]
        # A bad node is taken however often: to release it at once again would be the loop.
        if rule.do not in ORDERS and any(it.asked_at > self.now - HOUR for it in own):
            return looping(target)
        if rule.do is Do.REMEDIATE:
            return None
        return room.over_nodes(target) if rule.do in ORDERS else room.over_jobs(target)

    def _is_busy(self, node: str) -> str | None:
        """Why a node is not ready for a script. A lost node's pods are lost already."""
        settled = self.now - timedelta(seconds=self.bounds.settles_s)
        orders = [it for it in self._of(node) if _holds_a_node(it)]
        if not orders:
            return f"No action has taken {node} yet."
        if not any(it.at <= settled for it in orders):
            return f"{node} was just taken."
        if self.bounds.pods.get(node) != 0 and node not in self.lost:
            return f"{node} runs pods still."
        return None


@dataclass(slots=True)
class _Room:
    """What limits leave: the nodes and jobs that were acted on since a time, and the nodes that are
    taken now.
    """

    bounds: Bounds
    since: datetime
    nodes: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def note(self, action: Action) -> None:
        """An action counts."""
        if action.is_dry_run:
            return
        if action.state in ACTED and action.asked_at > self.since:
            if action.do in ORDERS:
                self.nodes.add(action.target)
            elif action.do is Do.STOP_JOB:
                self.jobs.add(action.target)
        if _takes_a_node(action):
            self.taken.add(action.target)

    def over_nodes(self, node: str) -> str | None:
        """Why a node can't be taken now."""
        if self.bounds.per_hour == 0 and node not in self.taken:
            return "nodesPerHour is 0: no node is taken."
        if node not in self.nodes and len(self.nodes) >= self.bounds.per_hour:
            return f"{counted(len(self.nodes), 'node')} taken within the last hour, the limit."
        if node not in self.taken and len(self.taken) >= self.bounds.at_once:
            return f"{counted(len(self.taken), 'node')} taken now, the limit: release one."
        return None

    def over_jobs(self, job: str) -> str | None:
        """Why a job can't be stopped now."""
        if job not in self.jobs and len(self.jobs) >= self.bounds.jobs_per_hour:
            return f"{counted(len(self.jobs), 'job')} stopped within the last hour, the limit."
        return None


def _hour_after_release(until: datetime) -> str:
    return f"at {until:%Y-%m-%d %H:%M:%S} UTC, an hour after the node was last released."


def looping(target: str) -> str:
    """Why an action on a target is not repeated yet."""
    return (
        f"The rule acted on {target} within the last hour. If the alert comes of the action itself,"
        " change the rule: this is a loop."
    )


def answered(action: Action, outcome: Outcome, reason: str, *, now: datetime) -> Action:
    """An action after REST's answer; one that is late or comes again changes nothing."""
    match outcome:
        case Outcome.UNDONE if action.state is not State.UNDONE:
            return _now(action, State.UNDONE, reason, now)
        case Outcome.RUNNING if action.state is State.REQUESTED:
            return _now(action, State.RUNNING, reason, now)
        case Outcome.FAILED if action.state in GOES_ON:
            return _now(action, State.FAILED, reason, now)
        case Outcome.DONE if action.state in GOES_ON:
            return _now(action, State.DONE, reason, now)
        case Outcome.DRY_RUN if action.state is State.REQUESTED:
            return _now(action, State.DRY_RUN, reason, now)
        case Outcome.REFUSED if action.state in GOES_ON:
            return _now(action, State.REFUSED, reason, now)
        case Outcome.REFUSED if action.state is State.UNDO_REQUESTED:
            return _now(action, State.UNDONE, reason, now)
        case _:
            return action


def asked_for(answer: ActionAnswered, *, now: datetime) -> Action | None:
    """The release that a person asked REST for; None: the answer is about no such one."""
    if answer.do is not Do.RELEASE or answer.target is None or answer.rule is None:
        return None
    return Action(
        action=answer.action,
        rule=answer.rule,
        do=answer.do,
        target=answer.target,
        fingerprint="",
        starts_at=answer.at,
        name="",
        summary=f"{answer.by or 'Somebody'} asked for it.",
        state=State.REQUESTED,
        reason="Requested.",
        at=now,
        asked_at=now,
    )


def events_of(before: Action, after: Action, until: datetime | None) -> tuple[Event, ...]:
    """The event that a script waits for, once the node is ready for it."""
    is_new = before.state is not State.RUNNING and after.state is State.RUNNING
    if after.do is not Do.REMEDIATE or not is_new:
        return ()
    return (
        Event(
            key=script_event(after),
            name=AlertEvent.REMEDIATION_REQUESTED,
            at=after.at,
            severity=SEVERITIES[AlertEvent.REMEDIATION_REQUESTED],
            title=f"Node {after.target} is to be remediated",
            text=f"{after.summary}. The node runs no pods. The rule {after.rule} wants a script's"
            f" answer: `muster alerts answer {after.action}`.",
            thread=f"node/{after.target}",
            data={
                "action": after.action,
                "node": after.target,
                "rule": after.rule,
                "alert": after.fingerprint,
                "name": after.name,
                "summary": after.summary,
                "until": None if until is None else until.isoformat(),
            },
        ),
    )


def script_event(action: Action) -> str:
    """The key of the event that a script waits for."""
    return f"{AlertEvent.REMEDIATION_REQUESTED}/{action.action}"


def is_script_over(before: Action, after: Action) -> bool:
    """No script is to begin any more: the node may be in use again."""
    return (
        after.do is Do.REMEDIATE
        and before.state is State.RUNNING
        and after.state is not State.RUNNING
    )


def alerts_of(before: Action, after: Action) -> tuple[Alert, ...]:
    """The alert that a failure makes, and its end: a person has decided about the node."""
    if (before.state is State.FAILED) is (after.state is State.FAILED):
        return ()
    failed = after if after.state is State.FAILED else before
    why = failed.reason  # of a preflight job, it names that
    if failed.do is Do.REMEDIATE:
        why = f"Its remediation failed: {why}"
    alert = Alert(
        name=FAILURES[failed.do],
        severity=Severity.CRITICAL,
        summary=f"Node {failed.target} stays out. {why}"[:500],
        labels={"node": failed.target, "rule": failed.rule, "action": failed.action},
        starts_at=failed.at,
        runbook=RUNBOOK,
    )
    return (alert,) if failed is after else (alert.resolved(max(after.at, alert.starts_at)),)


def action_id(rule: ActionRule, alert: Alert) -> str:
    """The same for every look at one time that an alert fires."""
    parts = (rule.name, rule.do, str(rule.is_dry_run), alert.fingerprint)
    text = "\0".join((*parts, alert.starts_at.isoformat()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def target_of(do: Do, alert: Alert) -> str | None:
    """The node, or the job as ``user~name``, that an alert is about."""
    it = subject_of(alert.labels)
    return (it.node or None) if do in ON_NODES else it.job


def jobs_to_stop(rules: Iterable[ActionRule], alerts: Collection[Alert]) -> set[str]:
    """The jobs that rules would stop because of these alerts."""
    stops = [it for it in rules if it.do is Do.STOP_JOB]
    targets = (target_of(it.do, alert) for it in stops for alert in alerts if it.fits(alert))
    return {it for it in targets if it is not None}


def _keeps_out(action: Action) -> bool:
    """Its node does not come back only because alerts are over."""
    if action.do not in REPAIRS:
        return False
    is_waiting = action.do is Do.RELEASE and action.state is State.HELD
    return is_waiting or action.state in GOES_ON or action.state is State.FAILED


def _holds_a_node(action: Action) -> bool:
    return action.state is State.DONE and action.do in ORDERS and not action.is_dry_run


def _takes_a_node(action: Action) -> bool:
    is_asked = action.state is State.REQUESTED and action.do in ORDERS
    return is_asked or _holds_a_node(action)


def _now(action: Action, state: State, reason: str, now: datetime) -> Action:
    is_asked = state is State.UNDO_REQUESTED
    asked_at = now if is_asked else action.asked_at
    return replace(action, state=state, reason=reason, at=now, asked_at=asked_at)
