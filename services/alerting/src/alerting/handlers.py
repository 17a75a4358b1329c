"""Messages and the passing of time: load, decide, save and publish, in one transaction."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

import structlog
from muster.contracts.alerts import ActionAnswered, AlertsReceived, subject_of
from muster.contracts.jobs import JobStatus
from muster.contracts.model import Model
from muster.contracts.nodes import NodeLost, NodeNameClashed, NodeReport, NodeReturned
from muster.contracts.notices import AccountingDrifted, DeadLetter
from muster.contracts.reports import UsageReported
from muster.contracts.subscriptions import AlertEvent, Subscription
from muster.contracts.topics import DEAD_LETTER, TOPICS, Service
from muster.db import Connection, Transaction
from muster.errors import Broken
from muster.ids import NAME_CHARACTERS, is_name
from muster.records import Received
from muster.subjects import Subjects
from muster.telemetry import current_traceparent, span
from opentelemetry.trace import SpanKind
from pydantic import ValidationError

from alerting.domain import (
    action_alerts,
    actions,
    clashes,
    deadletters,
    drifts,
    event_rules,
    external,
    health,
    jobs,
    nodes,
    reports,
)
from alerting.domain.actions import Action
from alerting.domain.deliveries import ALERTS, Delivery, deliveries
from alerting.domain.event_rules import Match
from alerting.domain.events import ENDS, Alert, Event, Source
from alerting.domain.jobs import Watch
from alerting.domain.mutes import is_muted
from alerting.domain.nodes import NodeWatch
from alerting.domain.notices import events_of, with_cause
from alerting.domain.policy import Policy
from alerting.domain.repeated import Key, Repeated, RepeatedOutcome
from alerting.mutes import KnownMutes
from alerting.reported import ReportedNodes
from alerting.rules import KnownRules
from alerting.store import actions as action_store
from alerting.store import alerts as alert_store
from alerting.store import deliveries as delivery_store
from alerting.store import rules as rule_store
from alerting.store import watches
from alerting.store.deliveries import Listed
from alerting.store.repeated import CLASH_WATCHES, DEAD_LETTER_WATCHES, DRIFT_WATCHES, TABLES, Table
from alerting.subscriptions import Subscriptions

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_log = structlog.get_logger()

RECEIVED_TOPICS = (
    "job-updated",
    "node-lost",
    "node-returned",
    "node-name-clashed",
    "accounting-drifted",
    "alerts-received",
    "action-answered",
    "usage-reported",
    *(name + DEAD_LETTER for name in TOPICS),
)

NODES_AT_ONCE = 1_000
"""The most nodes whose health is compared with their alerts in one transaction."""

KEYS = frozenset({"job", "node", "reader", "topic", "gang", "address", "other_address"})
"""The fields of records by which rows are found."""


@dataclass
class Notified:
    """What a transaction notifies: counted and logged once it is committed. ``seen``: the reports
    that alerts follow by then.
    """

    events: list[tuple[Event, str | None]] = field(default_factory=list)
    alerts: list[tuple[Alert, str | None]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    expired: int = 0
    seen: Mapping[str, NodeReport | None] = field(default_factory=dict)

    def add(self, events: Iterable[Event], alerts: Iterable[Alert]) -> None:
        """Take what a decision notifies, with the trace that is current."""
        trace = current_traceparent()
        self.events += [(event, trace) for event in events]
        self.alerts += [(alert, trace) for alert in alerts]

    def join(self, other: "Notified") -> None:
        """Take what the same transaction notifies besides."""
        self.events += other.events
        self.alerts += other.alerts
        self.deliveries += other.deliveries


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """What people have set, as it is now."""

    rules: KnownRules = field(default_factory=KnownRules)
    mutes: KnownMutes = field(default_factory=KnownMutes)

    def on_record(self, record: Received, model: Model | None) -> None:
        """Take a setting."""
        self.rules.on_record(record, model)
        self.mutes.on_record(record, model)


class Listener:
    """Takes messages and the time. ``nodes`` gives the nodes as they are reported; None while that
    is not known.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        nodes: Callable[[], ReportedNodes | None],
        settings: KnownSettings,
        policy: Policy,
    ) -> None:
        self.subscriptions = subscriptions
        self._nodes = nodes
        self._rules = settings.rules
        self._mutes = settings.mutes
        self._policy = policy

    async def receive(self, opened: Transaction, records: Sequence[Received]) -> Notified:
        """Apply a batch. What can't be read or decided becomes a dead letter."""
        subjects = Subjects(opened, Service.ALERTING)
        readable: list[tuple[Received, Model]] = []
        for record in records:
            try:
                readable.append((record, _read(record)))
            except Broken as error:
                _dead_letter(subjects, record, str(error))
        batch = _Batch(self._policy, opened.now)
        await batch.load(opened.conn, [model for _, model in readable])
        for record, model in readable:
            try:
                batch.apply(record, model)
            except Exception as error:
                _log.exception("a decision failed", topic=record.topic, key=record.key)
                _dead_letter(subjects, record, f"{type(error).__name__}: {error}")
        await self._save(opened, batch)
        await subjects.save()
        return batch.notified

    async def pass_time(self, opened: Transaction, limit: int, *, is_settled: bool) -> Notified:
        """Decide what is due, up to ``limit`` of each kind, and what waits for nodes that were
        removed; unless ``is_settled``, only what nodes have reported, up to a bound too.
        """
        nodes = self._nodes()
        removed = () if nodes is None else nodes.removed()
        batch = _Batch(self._policy, opened.now)
        if is_settled:
            conn = opened.conn
            await batch.load_due(conn, limit, removed)
            batch.pass_time(removed)
            silent = await alert_store.silent_alerts(conn, self._policy.external_over_s, limit)
            names = self._rules.names
            over = await rule_store.over(conn, limit, names)
            silent += event_rules.with_reason(over, names)
            batch.notify_told(it.resolved(opened.now) for it in silent)
        if nodes is not None:
            unseen = nodes.unseen(NODES_AT_ONCE)
            known = await alert_store.alerts_of_nodes(opened.conn, unseen)
            if known is not None:
                off = self._rules.now.off
                batch.notify(health.changes(known, unseen, now=opened.now, off=off))
                batch.notified.seen = unseen
        await self._save(opened, batch)
        is_last = len(batch.notified.seen) < NODES_AT_ONCE
        if nodes is not None and is_last:
            batch.notified.join(await self._act(opened, nodes.reports()))
        return batch.notified

    async def _act(self, opened: Transaction, nodes: Mapping[str, NodeReport]) -> Notified:
        """Request what rules do because of alerts, and notify people of it. Nothing ends for want
        of rules before they are known.
        """
        told = _Batch(self._policy, opened.now)
        if not self._rules.is_known:
            return told.notified
        known = await action_store.known_actions(opened.conn)
        rules = self._rules.now
        if known is None or not (known or rules.actions):
            return told.notified
        firing = await alert_store.firing_alerts(opened.conn)
        pods = {name: len(report.pods_of_jobs) for name, report in nodes.items()}
        on_gpus = {it for it, report in nodes.items() if any(pod.gpus for pod in report.pods)}
        bounds = rules.limits.of(pods, self._policy.order_settles_s, on_gpus)
        to_stop = actions.jobs_to_stop(rules.actions, firing)
        bounds = replace(bounds, ended=await watches.ended_jobs(opened.conn, to_stop))
        changed = actions.decide(rules.actions, bounds, firing, known, now=opened.now)
        await action_store.save_actions(opened, changed)
        for each in changed:
            _log.info(
                "an action",
                action=each.action,
                rule=each.rule,
                do=each.do,
                target=each.target,
                state=each.state,
                reason=each.reason,
            )
        told.notify(
            action_alerts.changes(
                rules.actions,
                {it.action: it for it in (*known, *changed)}.values(),
                {(it.fingerprint, it.starts_at): it for it in firing},
                now=opened.now,
                off=rules.off,
            )
        )
        if told.notified.alerts:
            await self._save(opened, told)
        return told.notified

    async def _follow_rules(self, opened: Transaction, batch: "_Batch") -> None:
        """Let new events count for the alerts of rules. Alerts' own events do not: no rule can make
        itself fire.
        """
        conn, rules = opened.conn, self._rules.now.events
        events = {
            event.key: event_rules.shown(event)
            for event, _ in batch.notified.events
            if event.name not in ALERTS
        }
        new = await rule_store.note_events(conn, events)
        found = event_rules.matches(rules, [(key, events[key]) for key in new], opened.now)
        if not found:
            return
        counts = await rule_store.count_matches(conn, found)
        due = {it.alert.fingerprint: it for it in found if counts[it.alert.fingerprint] >= it.count}
        known = await rule_store.firing(conn, list(due))
        fresh = [it for ident, it in due.items() if ident not in known]
        made = await rule_store.made_lately(conn, sorted({it.alert.name for it in fresh}))
        begun: list[Alert] = []
        floods: dict[str, Match] = {}
        for each in fresh:
            name = each.alert.name
            made[name] = made.get(name, 0) + 1
            if made[name] <= event_rules.MOST_AN_HOUR:
                begun.append(each.alert)
            else:
                alert = event_rules.flooding(name, opened.now)
                floods[name] = Match(alert, each.event_key, 1, 3600.0)
        if floods:
            await rule_store.count_matches(conn, list(floods.values()))
            idents = [it.alert.fingerprint for it in floods.values()]
            known = await rule_store.firing(conn, idents)
            begun += [it.alert for it in floods.values() if it.alert.fingerprint not in known]
        batch.notify(begun)

    async def _save(self, opened: Transaction, batch: "_Batch") -> None:
        await batch.save(opened.conn)
        await self._follow_rules(opened, batch)
        notified = batch.notified
        await self._leave_out(opened.conn, notified)
        await alert_store.save_alerts(opened, notified.alerts)
        if notified.events:
            await self._note_rest(opened.conn, notified)
            await self._deliver(opened, notified)
        if batch.over:
            reason = "the action waits no longer for a script"
            notified.expired = await delivery_store.expire_events(opened.conn, batch.over, reason)

    async def _leave_out(self, conn: Connection, notified: Notified) -> None:
        """Leave out the alerts that operators have switched off, with their events, and the ends of
        those that have not begun. What fires already goes on to its end.
        """
        off = self._rules.now.off
        named = [it for it, _ in notified.alerts if it.name in off and it.source is Source.ALERTING]
        if not named:
            return
        firing = await rule_store.firing(conn, [it.fingerprint for it in named])
        out = {(it.fingerprint, it.ends_at is not None) for it in named}
        out -= {(ident, True) for ident in firing}
        notified.alerts = [
            (it, trace)
            for it, trace in notified.alerts
            if (it.fingerprint, it.ends_at is not None) not in out
        ]
        notified.events = [
            (it, trace)
            for it, trace in notified.events
            if (it.data.get("alert"), it.name in ENDS) not in out
        ]

    async def _note_rest(self, conn: Connection, notified: Notified) -> None:
        """Let ends know which alerts with their cause fire still."""
        ends = [it for it, _ in notified.events if it.name is AlertEvent.ALERT_RESOLVED]
        rest = await alert_store.still_firing(conn, {str(it.data["incident"]) for it in ends})

        def noted(event: Event) -> Event:
            if event.name is not AlertEvent.ALERT_RESOLVED:
                return event
            return replace(event, rest=rest.get(str(event.data["incident"])))

        notified.events = [(noted(it), trace) for it, trace in notified.events]

    async def _deliver(self, opened: Transaction, notified: Notified) -> None:
        """Write the deliveries of new events."""
        entries = list(self.subscriptions.entries())
        subscriptions = [entry.subscription for entry in entries]
        # Addresses of accounts name no events, and there is one for almost every user.
        naming = [it for it in subscriptions if it.events]
        of_all = [it for it in naming if not it.filter.users]
        of_user: dict[str, list[Subscription]] = {}
        for it in naming:
            for user in set(it.filter.users):
                of_user.setdefault(user, []).append(it)
        of_owner: dict[str, list[Subscription]] = {}
        for it in subscriptions:
            of_owner.setdefault(it.owner, []).append(it)

        def made(event: Event) -> Sequence[Delivery]:
            if event.job is None:
                return deliveries(naming, event, now=opened.now)
            user = event.job.user
            own = of_owner.get(user, ()) if event.is_asked or event.is_preset else ()
            return deliveries([*of_all, *of_user.get(user, ())], event, now=opened.now, own=own)

        by_id = {it.id: it for it in subscriptions}
        names = {alert.fingerprint: alert.name for alert, _ in notified.alerts}
        mutes = list(self._mutes.all())
        notified.deliveries = [
            it
            for event, _ in notified.events
            for it in made(event)
            if not is_muted(event, by_id[it.subscription], mutes, names, now=opened.now)
        ]
        listed = {
            entry.subscription.id: Listed(entry.subscription.owner, entry.version)
            for entry in entries
        }
        await delivery_store.add_deliveries(
            opened.conn, notified.events, notified.deliveries, listed
        )


def _read(record: Received) -> Model:
    if record.topic.endswith(DEAD_LETTER):
        try:
            model: Model = DeadLetter.model_validate_json(record.value or b"")
        except ValidationError as error:
            wrong = error.error_count()
            raise Broken(f"this is no dead letter: {wrong} fields are wrong") from None
    else:
        model = record.model()
    for name in KEYS & type(model).model_fields.keys():
        if not is_name(getattr(model, name)):
            raise Broken(f"{name} is longer than {NAME_CHARACTERS} characters or has a NUL in it")
    return model


def _dead_letter(subjects: Subjects, record: Received, reason: str) -> None:
    _log.error("a record can't be handled", topic=record.topic, key=record.key, reason=reason)
    subjects.dead_letter(None, record, reason, 0)


class _Shelf(Generic[K, V]):
    """Rows of one kind, in memory between their load and their save."""

    def __init__(self, rows: dict[K, V]) -> None:
        self._rows = rows
        self._changed: set[K] = set()
        self.known = list(rows)

    def get(self, key: K) -> V | None:
        return self._rows.get(key)

    def put(self, key: K, row: V) -> None:
        if self._rows.get(key) != row:
            self._rows[key] = row
            self._changed.add(key)

    def rows(self) -> list[V]:
        return list(self._rows.values())

    def changed(self) -> list[V]:
        return [self._rows[key] for key in self._changed]


class _Batch:
    """One pass: what is decided stays in memory until it is saved."""

    def __init__(self, policy: Policy, now: datetime) -> None:
        self._policy = policy
        self._now = now
        self._jobs: _Shelf[str, Watch] = _Shelf({})
        self._nodes: _Shelf[str, NodeWatch] = _Shelf({})
        self._repeated: dict[Table, _Shelf[Key, Repeated]] = {}
        self._actions: _Shelf[str, Action] = _Shelf({})
        self._external: dict[tuple[str, datetime], Alert] = {}
        self._of_nodes: frozenset[tuple[str, str]] = frozenset()
        self.over: list[str] = []  # keys of events that nobody is to act on any more
        self.notified = Notified()

    async def load(self, conn: Connection, models: Sequence[Model]) -> None:
        letters = [it for it in models if isinstance(it, DeadLetter)]
        rejected = [it for it in map(deadletters.job_record, letters) if it is not None]
        ids = {it.job for it in models if isinstance(it, JobStatus)} | {it.job for it in rejected}
        names = {it.node for it in models if isinstance(it, NodeLost | NodeReturned)}
        self._jobs = _Shelf(await watches.load_jobs(conn, ids))
        self._nodes = _Shelf(await watches.load_nodes(conn, names))
        keys: dict[Table, list[Key]] = {
            DEAD_LETTER_WATCHES: [(it.reader, it.topic) for it in letters],
            DRIFT_WATCHES: [(it.gang,) for it in models if isinstance(it, AccountingDrifted)],
            CLASH_WATCHES: [clashes.key_of(it) for it in models if isinstance(it, NodeNameClashed)],
        }
        for table in TABLES:
            self._repeated[table] = _Shelf(await table.load(conn, keys[table]))
        answers = {it.action for it in models if isinstance(it, ActionAnswered)}
        if answers:
            loaded = await action_store.load_actions(conn, answers)
            self._actions = _Shelf({it.action: it for it in loaded})
        of_others = [each for it in models if isinstance(it, AlertsReceived) for each in it.alerts]
        if of_others:
            found = await alert_store.known_alerts(conn, of_others)
            self._external = {(it.fingerprint, it.starts_at): it for it in found}
            about = {subject_of(it.labels).node for it in of_others if it.name in external.SAME}
            if about:
                self._of_nodes = await alert_store.firing_on(conn, about)

    async def load_due(self, conn: Connection, limit: int, removed: Collection[str]) -> None:
        self._jobs = _Shelf(await watches.due_jobs(conn, self._now, limit))
        self._nodes = _Shelf(await watches.due_nodes(conn, self._now, limit, removed))
        for table in TABLES:
            self._repeated[table] = _Shelf(await table.due(conn, self._now, limit))

    def apply(self, record: Received, model: Model) -> None:
        now, policy = self._now, self._policy
        match model:
            case JobStatus(job=job):
                known = self._jobs.get(job)
                self._put_job(jobs.received(known, model, now=now, policy=policy), record)
            case NodeLost(node=node):
                lost = nodes.lost(self._nodes.get(node), model, now=now, policy=policy)
                self._put_node(lost, record)
            case NodeReturned(node=node):
                back = nodes.returned(self._nodes.get(node), model, now=now, policy=policy)
                self._put_node(back, record)
            case AccountingDrifted(gang=gang):
                drift = self._repeated[DRIFT_WATCHES].get((gang,))
                received = drifts.received(drift, model, now=now, policy=policy)
                self._put_repeated(DRIFT_WATCHES, received, record)
            case NodeNameClashed():
                clash = self._repeated[CLASH_WATCHES].get(clashes.key_of(model))
                notified = clashes.received(clash, model, now=now, policy=policy)
                self._put_repeated(CLASH_WATCHES, notified, record)
            case DeadLetter():
                self._apply_dead_letter(model, record)
            case AlertsReceived():
                self._apply_external(model, record)
            case UsageReported():
                self.notified.add((reports.event_of(model),), ())
            case ActionAnswered(action=action):
                before = self._actions.get(action) or actions.asked_for(model, now=now)
                if before is not None:
                    after = actions.answered(before, model.outcome, model.reason, now=now)
                    self._actions.put(action, after)
                    self.notify(actions.alerts_of(before, after))
                    self.notified.add(actions.events_of(before, after, model.until), ())
                    if actions.is_script_over(before, after):
                        self.over.append(actions.script_event(after))
            case _:
                raise Broken(f"Alerting does not read {record.topic}")

    def _apply_dead_letter(self, letter: DeadLetter, record: Received) -> None:
        known = self._repeated[DEAD_LETTER_WATCHES].get((letter.reader, letter.topic))
        watch = deadletters.received(known, letter, now=self._now, policy=self._policy)
        rejected = deadletters.job_record(letter)
        if rejected is not None and self._policy.is_news(rejected.at, self._now):
            self._put_job(
                jobs.found_rejected(self._jobs.get(rejected.job), rejected, now=self._now), record
            )
        self._put_repeated(DEAD_LETTER_WATCHES, watch, record)

    def _apply_external(self, message: AlertsReceived, record: Received) -> None:
        changed: list[Alert] = []
        for each in message.alerts:
            place = each.fingerprint, each.starts_at
            known = self._external.get(place)
            alert = external.received(known, each)
            if alert is None:
                continue
            if known is None and alert.ends_at is None:
                changed += external.replaced(self._external.values(), alert)
                if external.is_notified(alert, self._of_nodes):
                    alert = replace(alert, cause=f"group/{message.group}")
            self._external[place] = alert
            changed.append(alert)
        for alert in changed:
            self._external[alert.fingerprint, alert.starts_at] = alert
        with span(f"{record.topic} process", kind=SpanKind.CONSUMER, parent=record.traceparent):
            self.notify_told(changed, message.truncated)

    def notify_told(self, alerts: Iterable[Alert], truncated: int = 0) -> None:
        """Take changed alerts of others. One without a cause was not notified: people knew it from
        another alert, or it was over before anybody knew it. Its end is no news.
        """
        changed = list(alerts)
        self.notified.add((), [it for it in changed if it.cause is None])
        self.notify([it for it in changed if it.cause is not None], truncated)

    def notify(self, alerts: Iterable[Alert], truncated: int = 0) -> None:
        """Take alerts that began or ended and have no events of their own."""
        known = [replace(it, runbook=self._policy.runbook(it.runbook)) for it in alerts]
        changed = with_cause(known)
        self.notified.add(events_of(changed, truncated=truncated), changed)

    def pass_time(self, removed: Collection[str]) -> None:
        now, policy = self._now, self._policy
        for watch in self._jobs.rows():
            self._put_job(jobs.time_passed(watch, now=now, policy=policy))
        for node in self._nodes.rows():
            if node.node in removed:
                self._put_node(nodes.removed(node, now=now))
            else:
                self._put_node(nodes.time_passed(node, now=now, policy=policy))
        for table, shelf in self._repeated.items():
            for it in shelf.rows():
                passed = table.repeats.time_passed(it, now=now, policy=policy)
                self._put_repeated(table, passed)

    def _put_job(self, outcome: jobs.JobOutcome, record: Received | None = None) -> None:
        self._jobs.put(outcome.watch.job, outcome.watch)
        self._notify(outcome, record)

    def _put_node(self, outcome: nodes.NodeOutcome, record: Received | None = None) -> None:
        self._nodes.put(outcome.watch.node, outcome.watch)
        self._notify(outcome, record)

    def _put_repeated(
        self, table: Table, outcome: RepeatedOutcome, record: Received | None = None
    ) -> None:
        self._repeated[table].put(outcome.watch.key, outcome.watch)
        self._notify(outcome, record)

    def _notify(
        self,
        outcome: jobs.JobOutcome | nodes.NodeOutcome | RepeatedOutcome,
        record: Received | None,
    ) -> None:
        """Take notifications, in the trace of the record that made them; most records make none."""
        if not outcome.events and not outcome.alerts:
            return
        name = f"{record.topic} process" if record is not None else "time passed"
        parent = record.traceparent if record is not None else None
        with span(name, kind=SpanKind.CONSUMER, parent=parent):
            self.notified.add(outcome.events, outcome.alerts)

    async def save(self, conn: Connection) -> None:
        await action_store.write_actions(conn, self._actions.changed())
        policy = self._policy
        await watches.save_jobs(conn, self._jobs.changed(), self._jobs.known, policy)
        await watches.save_nodes(conn, self._nodes.changed(), self._nodes.known, policy)
        for table, shelf in self._repeated.items():
            await table.save(conn, shelf.changed(), shelf.known, policy)
