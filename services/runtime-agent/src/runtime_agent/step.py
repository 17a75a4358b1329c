"""One step of the agent in the making: what it hears, decides and will say about pods.

Nothing of it holds before it is written to the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog
from muster.acknowledgements import addressed_to
from muster.bus import Outgoing
from muster.contracts.notices import AppliedRevision, DeadLetter, RevisionAcknowledged
from muster.contracts.pods import PodRequest
from muster.contracts.topics import DEAD_LETTER, Kind, Service
from muster.errors import Broken
from muster.exchange import Exchange, publish, receive, receive_acknowledgement, skip
from muster.ids import job_of
from muster.records import (
    Received,
    message_body,
    message_id,
    message_value,
    read_message_id,
)
from muster.telemetry import TRACER, current_traceparent, span
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from runtime_agent.domain import pods as decide
from runtime_agent.domain.pods import Decision, Effect, Phase, Pod, Surroundings
from runtime_agent.runner import Seen
from runtime_agent.store import Entry, Journal, Letter

ME = Service.RUNTIME_AGENT.value
DEAD_VALUE_CHARACTERS = 16_384

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

    `has` tells whether the node has anything of a pod, whatever the journal says.
    """

    journal: Journal
    node: Node
    has: Callable[[str], bool]
    gpu_count: int = 0
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
        self.said: list[tuple[str, Outgoing | AppliedRevision]] = []
        self.letters: list[Letter] = []
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
            self._bury(record, str(error))
            return
        match model:
            case PodRequest() if model.node == self._memory.node.name:
                self._take_request(record, model)
            case RevisionAcknowledged():
                if model.journal == self._memory.journal.id:
                    for applied in addressed_to(Service.RUNTIME_AGENT, model):
                        self._take_acknowledgement(applied)
            case _:
                return

    def _take_request(self, record: Received, request: PodRequest) -> None:
        entry = self.entry(request.pod)
        known = entry is not None and not _is_blank(entry)
        entry = entry or Entry(_blank(request.pod, request.job, request.gang))
        # What a request for another journal has seen was published by another agent of my name.
        is_mine = request.journal == self._memory.journal.id
        seen = request.seen if is_mine else entry.exchange.acknowledged
        heard = receive(entry.exchange, revision=request.revision, seen=seen, now=self.now)
        with span(
            f"{record.topic} process",
            kind=SpanKind.CONSUMER,
            parent=record.traceparent,
            attributes={"muster.pod": request.pod, "muster.job": request.job},
        ) as opened:
            after = replace(entry, exchange=heard.exchange, traceparent=current_traceparent())
            if not heard.is_new:
                self.keep(after)
            else:
                try:
                    decision = self._decide(after.pod if known else None, request)
                except Exception as error:  # a bug or an ask that no rule foresaw
                    opened.record_exception(error)
                    _log.exception("a request can't be handled", pod=request.pod)
                    self.keep(entry)
                    self._bury(record, f"{type(error).__name__}: {error}")
                    return
                self.put(after, decision)
            if heard.must_publish:
                self._say_again(self.changed[request.pod])

    def _decide(self, pod: Pod | None, request: PodRequest) -> Decision:
        is_mine = request.journal == self._memory.journal.id
        if pod is None and is_mine and self._memory.has(request.pod):
            # The node knows more of the pod than its journal, as after an older one came back: the
            # next look at the pod's directory tells what has become of it.
            pod = Pod(request.pod, request.job, request.gang, Phase.ACCEPTED, request.run)
        return decide.requested(pod, request, self._surroundings(with_held=True))

    def _surroundings(self, *, with_held: bool = False) -> Surroundings:
        memory = self._memory
        gpus, ports = self._holders() if with_held else ({}, {})
        return Surroundings(
            node=memory.node.name,
            journal=memory.journal.id,
            boot=memory.node.boot,
            gpu_count=memory.gpu_count,
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

    def _take_acknowledgement(self, notice: AppliedRevision) -> None:
        entry = self.entry(notice.subject)
        if entry is None:
            return
        heard = receive_acknowledgement(
            entry.exchange,
            revision=notice.revision,
            sender_revision=notice.sender_revision,
            is_rejected=notice.is_rejected,
            now=self.now,
        )
        self.keep(replace(entry, exchange=heard.exchange))
        if heard.exchange.rejected > entry.exchange.rejected:
            _log.error("the Launcher can't handle a word about a pod", pod=notice.subject)
        if heard.must_publish:
            self._say_again(self.changed[notice.subject])

    def see(self, entry: Entry, seen: Seen) -> str | None:
        """Applies a look at a live pod; the rule of its verdict where it has ended."""
        started_at = None if seen.started_at_s is None else _moment(seen.started_at_s)
        if seen.ending is None:
            if started_at is not None and entry.pod.phase is Phase.ACCEPTED:
                self.put(entry, decide.started(entry.pod, started_at, self._surroundings()))
            elif seen.checkpointed_at_s is not None:
                self._see_saved(entry, seen.checkpointed_at_s)
            return None
        ended_at = self.now if seen.ended_at_s is None else _moment(seen.ended_at_s)
        around = self._surroundings()
        decision = decide.ended(entry.pod, seen.ending, ended_at, started_at, around)
        if started_at is not None:
            _trace_run(entry, started_at, ended_at)
        self.put(entry, decision)
        verdict = None if decision.word is None else decision.word.verdict
        return None if verdict is None else verdict.rule

    def _see_saved(self, entry: Entry, saved_at_s: float) -> None:
        """A pod says so as often as it likes; the Launcher hears it now and then. The pod can have
        set any time: one before its start, or to come, is brought to where it can be.
        """
        pod, every = entry.pod, timedelta(seconds=self._memory.node.checkpoint_every_s)
        earliest_s = 0.0 if pod.started_at is None else pod.started_at.timestamp()
        at = _moment(min(max(saved_at_s, earliest_s), self.now.timestamp()))
        last = pod.checkpointed_at
        if last is None or (at > last and self.now >= last + every):
            self.put(entry, decide.checkpointed(pod, at, self._surroundings()))

    def say_still_there(self, entry: Entry) -> None:
        """Publishes the state of a live pod again, as a new message only where it is another."""
        self.put(entry, decide.still_there(entry.pod, self._surroundings()))
        after = self.changed[entry.pod.pod]
        if after.exchange.revision == entry.exchange.revision:
            self.repeat_now(after)

    def repeat_now(self, entry: Entry) -> None:
        """The last message is due again, and from then on until it is acknowledged."""
        due = replace(entry.exchange, repeats=0, repeat_at=self.now)
        self.keep(replace(entry, exchange=due))

    def put(self, entry: Entry, decision: Decision) -> None:
        """Takes a decision over, and says what it says."""
        self.effects.extend(decision.effects)
        entry = replace(entry, pod=decision.pod, changed_at=self.now)
        self._note_holder(entry)
        before = self._memory.entries.get(decision.pod.pod)
        was_live = before is not None and before.is_live
        # Every word of an end names a report to come, so each has to be followed by one.
        is_end = decision.word is not None and not entry.is_live
        self.outdates_report = self.outdates_report or is_end or was_live != entry.is_live
        if decision.word is None or message_body(decision.word) == entry.word:
            self.changed[decision.pod.pod] = entry
            return
        topic = decide.TOPIC_OF[decision.word.state]
        with span(
            f"{topic} publish",
            kind=SpanKind.PRODUCER,
            parent=entry.traceparent,
            attributes={"muster.pod": decision.pod.pod, "muster.job": decision.pod.job},
        ):
            traceparent = current_traceparent()
        spoken = replace(
            entry,
            exchange=publish(entry.exchange, self.now),
            topic=topic,
            word=message_body(decision.word),
            traceparent=traceparent,
        )
        self.keep(spoken, say=True)

    def keep(self, entry: Entry, *, say: bool = False) -> None:
        """The entry as it is now; with `say` its last word goes out."""
        self.changed[entry.pod.pod] = entry
        if say and entry.topic is not None and entry.word is not None:
            revision = entry.exchange.revision
            record = Outgoing(
                entry.topic,
                entry.pod.job,
                message_value(entry.word, revision, entry.exchange.named).encode(),
                message_id(ME, Kind.POD.value, entry.pod.pod, revision),
                self.now.timestamp(),
                entry.traceparent,
            )
            self.said.append((entry.pod.pod, record))

    def _say_again(self, entry: Entry) -> None:
        """My last word, under a revision that the other side takes for new."""
        self.say_anew(entry, publish)

    def say_anew(self, entry: Entry, how: Callable[[Exchange, datetime], Exchange]) -> None:
        """My last word, where there is one, as new; `how` tells under which revision."""
        if entry.word is not None:
            self.keep(replace(entry, exchange=how(entry.exchange, self.now)), say=True)

    def acknowledge(self, entry: Entry) -> None:
        """Says that the Launcher's word is applied, or was skipped as dead."""
        applied = AppliedRevision(
            kind=Kind.POD.value,
            subject=entry.pod.pod,
            revision=entry.exchange.seen,
            sender_revision=entry.exchange.revision,
            is_rejected=entry.exchange.skipped > 0,
        )
        self.said.append((f"{entry.pod.pod}/seen", applied))

    def _bury(self, record: Received, reason: str) -> None:
        """A dead letter; where the record is a word about a pod, its revision is skipped."""
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            headers=dict(record.headers),
            value=(record.value or b"").decode(errors="replace")[:DEAD_VALUE_CHARACTERS],
            reader=ME,
            reason=reason,
            at=self.now,
        )
        self.letters.append(
            Letter(
                f"{ME}/dead/{record.event_id}",
                record.topic + DEAD_LETTER,
                record.key or "",
                letter.model_dump_json(exclude_none=True),
                self.now.timestamp(),
            )
        )
        _log.error("a record can't be handled", topic=record.topic, reason=reason)
        named = read_message_id(record.event_id)
        if named is None or named[0] != Service.LAUNCHER.value or named[1] != Kind.POD.value:
            return
        _, _, name, revision = named
        entry = self.entry(name) or Entry(_blank(name, job_of(name), ""))
        if revision > entry.exchange.seen:
            skipped = skip(entry.exchange, revision=revision, now=self.now)
            self.keep(replace(entry, exchange=skipped, changed_at=self.now))


def _trace_run(entry: Entry, started_at: datetime, ended_at: datetime) -> None:
    """The pod's own time as a span of its job's trace."""
    carrier = {} if entry.traceparent is None else {"traceparent": entry.traceparent}
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
    return entry.pod.phase is Phase.ENDED and entry.word is None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
