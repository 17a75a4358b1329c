"""The alerts about actions: a rule holds a node, waits for a limit, or only says what it would do.

They follow from the actions as they are, and none begins while it fires. One that has ended can
begin again, as its rule does: so it starts now, not when the action came to its state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from muster.contracts.alerts import Do, subject_of

from alerting.domain.actions import (
    ABOUT_ACTIONS,
    CORDONED,
    DRAINED,
    DRY_RUN,
    HELD,
    ON_NODES,
    ORDERS,
    RUNBOOK,
    Action,
    ActionRule,
    State,
    looping,
)
from alerting.domain.events import Alert, Severity, Source

WORDS = {
    Do.CORDON: "cordon",
    Do.DRAIN: "drain",
    Do.REMEDIATE: "remediate",
    Do.RELEASE: "release",
    Do.STOP_JOB: "stop",
    Do.TAG_JOB: "tag",
}
LIMITED = ORDERS | {Do.STOP_JOB}
"""Where these wait, they wait for a limit; other actions wait for earlier stages."""
HOLDS = frozenset({State.DONE, State.UNDO_REQUESTED})
"""An order in these states keeps jobs away from its node."""


def changes(
    rules: Sequence[ActionRule],
    actions: Iterable[Action],
    firing: Mapping[tuple[str, datetime], Alert],
    *,
    now: datetime,
    off: Collection[str] = (),
) -> tuple[Alert, ...]:
    """The alerts that begin or end. ``off``: the names of alerts that do not begin."""
    standing = {(it.name, it.is_dry_run) for it in rules}
    wanted: dict[str, Alert] = {}
    for action in sorted(actions, key=lambda it: (it.at, it.action)):
        cause = firing.get((action.fingerprint, action.starts_at))
        is_standing = (action.rule, action.is_dry_run) in standing
        alert = _alert(action, cause, is_standing=is_standing, now=now)
        if alert is not None:
            wanted.setdefault(alert.fingerprint, alert)
    known = {it.fingerprint: it for it in firing.values() if it.name in ABOUT_ACTIONS}
    begun = [it for ident, it in wanted.items() if ident not in known and it.name not in off]
    ended = [
        it.resolved(max(now, it.starts_at)) for ident, it in known.items() if ident not in wanted
    ]
    return (*begun, *ended)


def _of_job(cause: Alert | None) -> dict[str, str]:
    """The labels of other alerts about a job. Prometheus calls something else a job."""
    if cause is None:
        return {}
    it, labels = subject_of(cause.labels), {}
    if cause.source is not Source.ALERTMANAGER:
        labels["job"] = cause.labels.get("job", "")
    labels |= {"user": it.user, "virtualCluster": it.virtual_cluster, "jobName": it.job_name}
    return {name: value for name, value in labels.items() if value}


def _is_limited(action: Action) -> bool:
    return action.do in LIMITED or action.reason == looping(action.target)


def _alert(
    action: Action, cause: Alert | None, *, is_standing: bool, now: datetime
) -> Alert | None:
    """What an action is to be told of now; ``cause``: its alert, while that fires."""
    rule, word = action.rule, WORDS.get(action.do, action.do.value)
    is_node = action.do in ON_NODES
    target = f"node {action.target}" if is_node else f"job {action.target}"
    labels = {"node": action.target} if is_node else _of_job(cause)
    of_rule = {"rule": rule}
    if action.do in ORDERS and action.state in HOLDS and not action.is_dry_run:
        is_drain = action.do is Do.DRAIN
        name, severity, of_rule = DRAINED if is_drain else CORDONED, Severity.WARNING, {}
        done = "drains" if is_drain else "has cordoned"
        text = f"Rule {rule} {done} {target}. {action.summary}"
    elif cause is None or not is_standing or action.state is State.REFUSED:
        return None
    elif action.is_dry_run:
        name, severity = DRY_RUN, Severity.INFO
        text = f"A dry run: rule {rule} would {word} {target}. {action.summary}"
    elif action.state is State.HELD and _is_limited(action):
        name, severity = HELD, Severity.WARNING
        # No reason: it changes while the alert fires, and a summary stays as it was.
        text = f"Rule {rule} does not {word} {target} yet: `muster alerts actions` has the reason"
    else:
        return None
    return Alert(
        name=name,
        severity=severity,
        summary=text[:500].rstrip("."),
        labels=labels | of_rule,
        starts_at=now,
        runbook=RUNBOOK,
        cause=cause.cause if cause is not None else None,
    )
