"""What rules do because of alerts: which action is due, held back, or to be taken back.

Each action is decided once for a rule and a time that an alert fires. Limits count nodes
and jobs, not actions, and hold actions back until there is room.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from muster.contracts.alerts import Do, Outcome, subject_of

from alerting.domain.events import Alert

ON_NODES = frozenset({Do.CORDON, Do.DRAIN})
HOUR = timedelta(hours=1)
ASK_AGAIN = timedelta(seconds=60)


class State(StrEnum):
    """What became of an action so far."""

    HELD = "held"
    REQUESTED = "requested"
    DRY_RUN = "dry-run"
    DONE = "done"
    REFUSED = "refused"
    UNDO_REQUESTED = "undo-requested"
    UNDONE = "undone"


ASKED = frozenset({State.REQUESTED, State.UNDO_REQUESTED})
"""Alerting waits for REST's answer."""
ACTS = frozenset({State.REQUESTED, State.DONE, State.UNDO_REQUESTED})
"""Its target is acted on."""


@dataclass(frozen=True, slots=True)
class ActionRule:
    """An operator's rule: on alerts with one of these names and labels (shell patterns), after they
    have fired for ``after_s``, ``do`` this. ``is_dry_run``: only say so. ``takes_back``: once the
    alert is over.
    """

    name: str
    alerts: tuple[str, ...]
    do: Do
    labels: Mapping[str, str]
    after_s: float = 0.0
    is_dry_run: bool = True
    takes_back: bool = True

    def fits(self, alert: Alert) -> bool:
        """Whether an alert is of its kind."""
        return any(fnmatchcase(alert.name, it) for it in self.alerts) and all(
            fnmatchcase(alert.labels.get(name, ""), it) for name, it in self.labels.items()
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

    def of(self, nodes: int) -> "Bounds":
        """The same for a cluster of so many nodes."""
        at_once = max(1, int(self.nodes_share * nodes))
        return Bounds(self.nodes_per_hour, at_once, self.jobs_per_hour)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most nodes that actions take in an hour, and at a time; the most jobs in an hour."""

    per_hour: int
    at_once: int
    jobs_per_hour: int


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``at``: of its newest state; ``asked_at``: when REST was last asked."""

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


def decide(
    rules: Sequence[ActionRule],
    bounds: Bounds,
    alerts: Iterable[Alert],
    known: Iterable[Action],
    *,
    now: datetime,
) -> tuple[Action, ...]:
    """The actions that are new or change. ``alerts``: all that fire; ``known``: actions of the last
    days, and all that still hold a node.
    """
    found = {each.action: each for each in known}
    firing = {(it.fingerprint, it.starts_at): it for it in alerts}
    changed: list[Action] = []

    def note(action: Action) -> None:
        found[action.action] = action
        changed.append(action)

    takes_back = {rule.name for rule in rules if rule.takes_back}
    for action in list(found.values()):
        is_over = (action.fingerprint, action.starts_at) not in firing
        if action.state in ASKED and action.asked_at <= now - ASK_AGAIN:
            note(replace(action, asked_at=now))
        elif action.state is State.HELD and is_over:
            note(_now(action, State.REFUSED, "The alert is over.", now))
        elif _holds_a_node(action) and is_over and action.rule in takes_back:
            note(_now(action, State.UNDO_REQUESTED, "The alert is over.", now))
    for rule in rules:
        for alert in firing.values():
            if not rule.fits(alert) or alert.starts_at + timedelta(seconds=rule.after_s) > now:
                continue
            before = found.get(action_id(rule, alert))
            if before is not None and before.state is not State.HELD:
                continue
            after = _decided(rule, alert, bounds, found.values(), now=now)
            if before is None or (before.state, before.reason) != (after.state, after.reason):
                note(after)
    return tuple(changed)


def answered(action: Action, outcome: Outcome, reason: str, *, now: datetime) -> Action:
    """An action after REST's answer; an answer that is late changes nothing."""
    match outcome:
        case Outcome.UNDONE:
            return _now(action, State.UNDONE, reason, now)
        case Outcome.DONE if action.state is State.REQUESTED:
            return _now(action, State.DONE, reason, now)
        case Outcome.DRY_RUN if action.state is State.REQUESTED:
            return _now(action, State.DRY_RUN, reason, now)
        case Outcome.REFUSED if action.state is State.REQUESTED:
            return _now(action, State.REFUSED, reason, now)
        case Outcome.REFUSED if action.state is State.UNDO_REQUESTED:
            return _now(action, State.UNDONE, reason, now)
        case _:
            return action


def action_id(rule: ActionRule, alert: Alert) -> str:
    """The same for every look at one time that an alert fires."""
    parts = (rule.name, rule.do, str(rule.is_dry_run), alert.fingerprint)
    text = "\0".join((*parts, alert.starts_at.isoformat()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def target_of(do: Do, alert: Alert) -> str | None:
    """The node, or the job as ``user~name``, that an alert is about."""
    it = subject_of(alert.labels)
    if do in ON_NODES:
        return it.node or None
    return f"{it.user}~{it.job_name}" if it.user and it.job_name else None


def _decided(
    rule: ActionRule,
    alert: Alert,
    bounds: Bounds,
    known: Iterable[Action],
    *,
    now: datetime,
) -> Action:
    target = target_of(rule.do, alert)
    state, reason = State.REQUESTED, "Requested."
    if target is None:
        what = "node" if rule.do in ON_NODES else "job of a user"
        state, reason = State.REFUSED, f"The alert's labels name no {what}."
    elif not rule.is_dry_run:
        held = _held(rule, target, bounds, list(known), now=now)
        if held is not None:
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
        at=now,
        asked_at=now,
        is_dry_run=rule.is_dry_run,
    )


def _held(
    rule: ActionRule,
    target: str,
    bounds: Bounds,
    known: Sequence[Action],
    *,
    now: datetime,
) -> str | None:
    """Why an action has to wait; None: it does not. A tag does no harm."""
    if rule.do is Do.TAG_JOB:
        return None
    known = [it for it in known if not it.is_dry_run]
    acted = [it for it in known if it.state in ACTS or it.state is State.UNDONE]
    own = [it for it in acted if (it.rule, it.target) == (rule.name, target)]
    # Under an order that stands, another alert of the node adds a reason to keep it.
    is_free = not any(_takes_a_node(it) for it in own)
    if is_free and any(it.asked_at > now - HOUR for it in own):
        return (
            f"The rule acted on {target} within the last hour. If the alert comes of the action"
            " itself, change the rule: this is a loop."
        )
    is_node = rule.do in ON_NODES
    lately = {
        it.target
        for it in acted
        if (it.do in ON_NODES) == is_node and it.do is not Do.TAG_JOB and it.asked_at > now - HOUR
    }
    if target not in lately and len(lately) >= (
        bounds.per_hour if is_node else bounds.jobs_per_hour
    ):
        what = "nodes were taken" if is_node else "jobs were stopped"
        return f"{len(lately)} {what} within the last hour, the limit."
    if not is_node:
        return None
    held = {it.target for it in known if _takes_a_node(it)}
    if target not in held and len(held) >= bounds.at_once:
        return f"{len(held)} nodes are taken, the limit: release one."
    return None


def _holds_a_node(action: Action) -> bool:
    return action.state is State.DONE and action.do in ON_NODES


def _takes_a_node(action: Action) -> bool:
    is_asked = action.state is State.REQUESTED and action.do in ON_NODES
    return is_asked or _holds_a_node(action)


def _now(action: Action, state: State, reason: str, now: datetime) -> Action:
    is_asked = state is State.UNDO_REQUESTED
    asked_at = now if is_asked else action.asked_at
    return replace(action, state=state, reason=reason, at=now, asked_at=asked_at)
