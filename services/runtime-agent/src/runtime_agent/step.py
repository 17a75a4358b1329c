"""One step of the agent in the making: what it receives, decides and will publish on pods.

Nothing of it holds before it is written to the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog
from muster.acknowledgements import Acknowledgement, addressed_to
from muster.channels import Outgoing
from muster.contracts.model import Reason
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.pods import PodAction, PodRequest
from muster.contracts.topics import Kind, Service
from muster.decisions import Publish
from muster.errors import Broken
from muster.exchange import Exchange, next_revision
from muster.ids import job_of
from muster.records import Received, read_message_id
from muster.subject import dead_letter
from muster.telemetry import TRACER, current_traceparent, span
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from runtime_agent.domain import pods as decide
from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Decision, Effect, Phase, Pod, Surroundings
from runtime_agent.runner import Seen
from runtime_agent.store import Entry, Journal, new_subject

ME = Service.RUNTIME_AGENT

REASON_CHARS = 500
"""Of the reason for which a pod waits, masked."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Node:
    """What does not change while the agent runs."""

    name: str
    boot: str
    default_grace_s: float
    checkpoint_every_s: float = 30.0


@dataclass(slots=True)
class Memory:
    """The active pods, as in the journal, and what decisions need to know of the node.

    `has` returns whether the node has anything of a pod, also one that the journal lacks. `masked`
    gives what is known of a pod's end without the pod's secrets.
    """

    journal: Journal
    node: Node
    has: Callable[[str], bool]
    masked: Callable[[Pod, Ending], Ending] = lambda _pod, ending: ending
    gpus: frozenset[int] = frozenset()
    is_stopping: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)


class Step:
    """One step in the making: nothing outside of it has changed until it is committed."""

    def __init__(self, memory: Memory, foreign_ports: frozenset[int] = frozenset()) -> None:
        self._memory = memory
        self._foreign_ports = foreign_ports
        self._held: tuple[dict[int, str], dict[int, str]] | None = None
        self.now = datetime.fromtimestamp(time.time(), UTC)
        self.changed: dict[str, Entry] = {}
        self.outgoing: list[Outgoing] = []
        self.acknowledged: list[Acknowledgement] = []
        self.letters: list[Outgoing] = []
        self.effects: list[Effect] = []
        self.outdates_report = False

    def entry(self, name: str) -> Entry | None:
        """The pod as this step sees it."""
        found = self.changed.get(name) or self._memory.entries.get(name)
        return found or self._memory.journal.load([name]).get(name)

    def take(self, record: Received) -> None:
        """One record of the bus."""
        try:
            model = record.model()
        except Broken as error:
            self._dead_letter(record, str(error))
            return
        match model:
            case PodRequest() if model.node == self._memory.node.name:
                self._take_request(record, model)
            case RevisionAcknowledged():
                if model.journal == self._memory.journal.id:
                    for applied in addressed_to(Service.RUNTIME_AGENT, model, record.topic):
                        self._take_acknowledgement(applied)
            case _:
                return

    def _take_request(self, record: Received, request: PodRequest) -> None:
        entry = self.entry(request.pod)
        known = entry is not None and not _is_blank(entry)
        entry = entry or self._new(_blank(request.pod, request.job, request.gang))
        if request.journal != self._memory.journal.id:
            # The revisions that such a request has seen are of another agent with my name.
            seen = entry.subject.exchange.acknowledged
            request = request.model_copy(update={"seen": seen})
        with span(
            f"{record.topic} process",
            kind=SpanKind.CONSUMER,
            parent=record.traceparent,
            attributes={"muster.pod": request.pod, "muster.job": request.job},
        ) as opened:
            subject, receipt = entry.subject.received(request, current_traceparent(), self.now)
            after = replace(entry, subject=subject)
            has_forgotten = False
            if not receipt.is_new:
                self.keep(after)
            else:
                try:
                    decision = self._decide(after.pod if known else None, request)
                except Exception as error:  # a bug or a request that no rule foresaw
                    opened.record_exception(error)
                    _log.exception("a request can't be handled", pod=request.pod)
                    self.keep(entry)
                    self._dead_letter(record, f"{type(error).__name__}: {error}")
                    return
                self.put(after, decision)
                # A Launcher that asks for a pod again has no memory of the end that it applied.
                is_over = known and after.pod.phase is Phase.ENDED
                has_forgotten = is_over and request.action is PodAction.RUN
            if receipt.must_publish or has_forgotten:
                self.publish_again(self.changed[request.pod], next_revision)

    def _new(self, pod: Pod) -> Entry:
        return Entry(pod, new_subject(pod, self._memory.journal.id))

    def _decide(self, pod: Pod | None, request: PodRequest) -> Decision:
        is_mine = request.journal == self._memory.journal.id
        if pod is None and is_mine and self._memory.has(request.pod):
            # The node has more of the pod than its journal, as after a restored older journal: the
            # next look at the pod's directory shows its state.
            pod = Pod(request.pod, request.job, request.gang, Phase.ACCEPTED, request.run)
        return decide.requested(pod, request, self._surroundings(with_held=True))

    def _surroundings(self, *, with_held: bool = False) -> Surroundings:
        memory = self._memory
        gpus, ports = self._holders() if with_held else ({}, {})
        return Surroundings(
            node=memory.node.name,
            journal=memory.journal.id,
            boot=memory.node.boot,
            gpus=memory.gpus,
            next_report=memory.journal.next_report,
            is_stopping=memory.is_stopping,
            default_grace_s=memory.node.default_grace_s,
            held_gpus=gpus,
            held_ports=ports,
            foreign_ports=self._foreign_ports,
        )

    def _holders(self) -> tuple[dict[int, str], dict[int, str]]:
        """Which live pod holds a GPU, and which a port, as this step sees it."""
        if self._held is None:
            self._held = ({}, {})
            for entry in (self._memory.entries | self.changed).values():
                self._note_holder(entry)
        return self._held

    def _note_holder(self, entry: Entry) -> None:
        if self._held is not None and entry.is_live and entry.pod.run is not None:
            gpus, ports = self._held
            gpus |= dict.fromkeys(entry.pod.run.gpus, entry.pod.pod)
            for numbers in entry.pod.run.ports.values():
                ports |= dict.fromkeys(numbers, entry.pod.pod)

    def _take_acknowledgement(self, applied: AppliedRevision) -> None:
        entry = self.entry(applied.subject)
        if entry is None:
            return
        subject, receipt = entry.subject.received_acknowledgement(applied, self.now)
        self.keep(replace(entry, subject=subject))
        if subject.exchange.rejected > entry.subject.exchange.rejected:
            _log.error("the Launcher rejected a message on a pod", pod=applied.subject)
        if receipt.must_publish:
            self.publish_again(self.changed[applied.subject], next_revision)

    def see(self, entry: Entry, seen: Seen) -> str | None:
        """Applies a look at a live pod; the rule of its verdict where it has ended."""
        started_at = None if seen.started_at_s is None else _moment(seen.started_at_s)
        if seen.ending is None:
            if started_at is not None and entry.pod.phase is Phase.ACCEPTED:
                around = self._surroundings()
                self.put(entry, decide.started(entry.pod, started_at, around, seen.address))
            elif seen.checkpointed_at_s is not None:
                self._see_saved(entry, seen.checkpointed_at_s)
            elif entry.pod.phase is Phase.ACCEPTED:
                self._see_waiting(entry, seen.reason)
            return None
        ended_at = self.now if seen.ended_at_s is None else _moment(seen.ended_at_s)
        around = self._surroundings()
        ending = self._memory.masked(entry.pod, seen.ending)
        decision = decide.ended(entry.pod, ending, ended_at, started_at, around)
        if started_at is not None:
            _trace_run(entry, started_at, ended_at)
        self.put(entry, decision)
        verdict = None if decision.message is None else decision.message.verdict
        return None if verdict is None else verdict.rule

    def _see_saved(self, entry: Entry, saved_at_s: float) -> None:
        """A pod may report saved work at any rate; the Launcher gets it at a bounded one. The pod
        can set any file time: one before its start, or in the future, is clamped.
        """
        pod, every = entry.pod, timedelta(seconds=self._memory.node.checkpoint_every_s)
        earliest_s = 0.0 if pod.started_at is None else pod.started_at.timestamp()
        at = _moment(min(max(saved_at_s, earliest_s), self.now.timestamp()))
        last = pod.checkpointed_at
        if last is None or (at > last and self.now >= last + every):
            self.put(entry, decide.checkpointed(pod, at, self._surroundings()))

    def _see_waiting(self, entry: Entry, reason: Reason | None) -> None:
        if reason == entry.pod.reason:  # to mask it once more would make it another one
            return
        if reason is not None:
            shown = self._memory.masked(entry.pod, Ending(detail=reason.text)).detail
            reason = reason.model_copy(update={"text": (shown or "")[:REASON_CHARS]})
        if reason != entry.pod.reason:
            self.put(entry, decide.waits(entry.pod, reason, self._surroundings()))

    def publish_still_there(self, entry: Entry) -> None:
        """Publishes the state of a live pod again, as a new message only where it is another."""
        self.put(entry, decide.still_there(entry.pod, self._surroundings()))
        after = self.changed[entry.pod.pod]
        if after.subject.exchange.revision == entry.subject.exchange.revision:
            self.repeat_now(after)

    def repeat_now(self, entry: Entry) -> None:
        """The latest message is due again, and from then on until it is acknowledged."""
        due = replace(entry.subject.exchange, repeats=0, repeat_at=self.now)
        self.keep(replace(entry, subject=replace(entry.subject, exchange=due)))

    def put(self, entry: Entry, decision: Decision) -> None:
        """Takes a decision over, and publishes its message."""
        self.effects.extend(decision.effects)
        entry = replace(entry, pod=decision.pod, changed_at=self.now)
        self._note_holder(entry)
        before = self._memory.entries.get(decision.pod.pod)
        was_live = before is not None and before.is_live
        # Every message of an end names a report to come, so each has to be followed by one.
        is_end = decision.message is not None and not entry.is_live
        self.outdates_report = self.outdates_report or is_end or was_live != entry.is_live
        self.keep(entry)
        if decision.message is None:
            return
        topic, pod = decide.TOPIC_OF[decision.message.state], decision.pod
        with span(
            f"{topic} publish",
            kind=SpanKind.PRODUCER,
            parent=entry.subject.traceparent,
            attributes={"muster.pod": pod.pod, "muster.job": pod.job},
        ):
            message = Publish(Kind.POD, pod.pod, topic, pod.job, decision.message)
            subject = entry.subject.published(message, current_traceparent(), self.now)
        if subject is not entry.subject:
            self._publish(replace(entry, subject=subject))

    def keep(self, entry: Entry) -> None:
        """The entry as it is now."""
        self.changed[entry.pod.pod] = entry

    def _publish(self, entry: Entry) -> None:
        self.keep(entry)
        self.outgoing.append(entry.subject.latest(ME, self.now))

    def publish_again(self, entry: Entry, how: Callable[[Exchange, datetime], Exchange]) -> None:
        """The latest message, where there is one, as new; `how` sets its revision."""
        if entry.subject.message is not None:
            after = how(entry.subject.exchange, self.now)
            self._publish(replace(entry, subject=replace(entry.subject, exchange=after)))

    def send_due(self, entry: Entry, jitter: float, *, may_repeat: bool) -> bool:
        """What is due on a pod goes out; whether its message is republished."""
        due = entry.subject.due(self.now, jitter, may_repeat=may_repeat)
        if due.acknowledgement is not None:
            self.acknowledged.append(due.acknowledgement)
        if due.is_repeat:
            self._publish(replace(entry, subject=due.row))
        elif due.acknowledgement is not None:
            self.keep(replace(entry, subject=due.row))
        return due.is_repeat

    def _dead_letter(self, record: Received, reason: str) -> None:
        """A dead letter; where the record is a message on a pod, its revision is skipped."""
        letter = dead_letter(ME, record, reason, self.now)
        if letter is None:
            return
        self.letters.append(letter)
        _log.error("a record can't be handled", topic=record.topic, reason=reason)
        named = read_message_id(record.event_id)
        if named is None or named[0] != Service.LAUNCHER.value or named[1] != Kind.POD.value:
            return
        _, _, name, revision = named
        entry = self.entry(name) or self._new(_blank(name, job_of(name), ""))
        skipped = entry.subject.skipped(record, revision, self.now)
        self.keep(replace(entry, subject=skipped, changed_at=self.now))


def _trace_run(entry: Entry, started_at: datetime, ended_at: datetime) -> None:
    """The pod's own time as a span of its job's trace."""
    traceparent = entry.subject.traceparent
    carrier = {} if traceparent is None else {"traceparent": traceparent}
    opened = TRACER.start_span(
        "pod run",
        context=propagate.extract(carrier),
        attributes={"muster.pod": entry.pod.pod, "muster.job": entry.pod.job},
        start_time=_nanoseconds(started_at),
    )
    opened.end(_nanoseconds(ended_at))


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)


def _blank(name: str, job: str, gang: str) -> Pod:
    """A name of which nothing could be read yet."""
    return Pod(name, job, gang, Phase.ENDED)


def _is_blank(entry: Entry) -> bool:
    return entry.pod.phase is Phase.ENDED and entry.subject.message is None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
