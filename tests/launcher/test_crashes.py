"""A Launcher and an agent, both by their real cores over the real exchange, of which every process
dies at once, at any moment and more than once; and the Launcher's database may come back without
its last commits. A stopped job ends all the same.
"""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from launcher.domain.decide import decide
from launcher.domain.model import JobWithTasks, Policy, wake_at
from launcher_peers import FakeScheduler
from muster.acknowledgements import acknowledgements
from muster.channels import Outgoing
from muster.contracts.gangs import GangRequest
from muster.contracts.jobs import Execution, JobRequest
from muster.contracts.notices import AppliedRevision, RevisionAcknowledged
from muster.contracts.pods import PodStatus
from muster.contracts.services import ServiceStarted
from muster.contracts.topics import Kind, Service
from muster.decisions import Due, Input
from muster.exchange import Exchange, next_revision, resync
from muster.records import Received
from muster.subject import Subject
from runtime_agent.domain.ending import Ending, Loss, Refusal
from runtime_agent.domain.pods import Forget, Launch, Stop
from runtime_agent.handlers import Handlers
from runtime_agent.runner import Seen
from runtime_agent.step import Memory, Node
from runtime_agent.store import Journal
from seeds import how_many

MakeRequest = Callable[..., JobRequest]

HISTORIES = how_many(30, deep=80)
STEPS = 100
GRACE_SHARE = 0.1
"""How likely a pod that was asked to stop has stopped by the next look."""
FORGOTTEN_STEPS = 40
SILENT_AFTER = 8
LONGEST = timedelta(minutes=5)
"""Of the world's time, from the last crash to the job's end."""


@dataclass
class Directory:
    """What is on the node's disk of a pod; ``is_watched``: its supervisor lives."""

    phase: str = "prepared"
    is_watched: bool = True
    is_asked: bool = False
    ending: Ending = field(default_factory=Ending)


class World:
    """One job, its Launcher, and the agent of its node."""

    def __init__(self, request: JobRequest, home: Path, rng: random.Random) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.random = rng
        self.request = request
        self.home = home
        self.bus: list[tuple[Service, Outgoing]] = []
        self.job_with_tasks: JobWithTasks | None = None
        self.rows: dict[str, Subject] = {}
        self.stored: list[tuple[JobWithTasks | None, dict[str, Subject], datetime]] = []
        self.scheduler = FakeScheduler()
        self.directories: dict[str, Directory] = {}
        self.ran: set[str] = set()
        self.is_stopped = False
        self.journal = Journal(home / "journal", "journal-of-n1")
        self.start_agent()
        self.receive(request)
        self.receive(self.scheduler.place(f"{request.job}-0", "n1"))

    # The Launcher.

    def receive(self, given: Input) -> None:
        decision = decide(
            self.request.job, self.job_with_tasks, given, now=self.now, policy=Policy()
        )
        self.job_with_tasks = decision.state
        for message in decision.messages:
            if isinstance(message.message, GangRequest):
                if message.subject not in self.scheduler.gangs:
                    self.scheduler.receive(message.message.model_copy(update={"revision": 1}))
            elif message.kind is Kind.POD:
                before = self.row(message.subject)
                after = before.published(message, None, self.now)
                if after is not before:
                    self.publish(after)

    def row(self, pod: str) -> Subject:
        return self.rows.get(pod, Subject(Kind.POD, pod))

    def publish(self, row: Subject) -> None:
        self.rows[row.subject] = row
        if row.topic is not None:
            record = row.latest(Service.LAUNCHER, self.now)
            self.bus.append((Service.RUNTIME_AGENT, record))

    def publish_again(self, row: Subject, how: Callable[..., Exchange]) -> None:
        self.publish(replace(row, exchange=how(row.exchange, self.now)))

    def receive_record(self, record: Received) -> None:
        match record.model():
            case RevisionAcknowledged(applied=applied):
                for one in applied:
                    self.receive_applied(one)
            case PodStatus() as message:
                row, receipt = self.row(message.pod).received(message, None, self.now)
                self.rows[message.pod] = row
                if receipt.must_publish:
                    self.publish_again(row, next_revision)
                if receipt.is_new:
                    self.receive(message)

    def receive_applied(self, one: AppliedRevision) -> None:
        if one.subject in self.rows:
            row, receipt = self.rows[one.subject].received_acknowledgement(one, self.now)
            self.rows[one.subject] = row
            if receipt.must_publish:
                self.publish_again(row, next_revision)

    def ring(self) -> None:
        """What is due at the Launcher: repeats, answers, timers."""
        for row in list(self.rows.values()):
            due = row.due(self.now, self.random.random(), may_repeat=True)
            self.rows[row.subject] = due.row
            if due.is_repeat:
                self.publish(due.row)
            if due.acknowledgement is not None:
                found = acknowledgements(Service.LAUNCHER, [due.acknowledgement], 0.0)
                self.bus += [(Service.RUNTIME_AGENT, record) for record in found]
        assert self.job_with_tasks is not None
        due = wake_at(self.job_with_tasks)
        if due is not None and due <= self.now:
            self.receive(Due())

    # The agent.

    def start_agent(self) -> None:
        node = Node("n1", "boot", 30.0)
        memory = Memory(
            self.journal, node, has=lambda name: name in self.directories, gpus=frozenset(range(8))
        )
        self.pending: list[Outgoing] = []
        self.handlers = Handlers(memory, self.pending.extend, lambda: None)
        self.has_begun = False
        for entry in self.handlers.live():
            if entry.pod.stop is not None:
                self.ask_to_stop(entry.pod.pod)

    def begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self.handlers.on_return()

    def send(self) -> None:
        self.bus += [(Service.LAUNCHER, record) for record in self.pending]
        self.pending.clear()

    def carry_out(self) -> None:
        if not self.handlers.effects:
            return
        match self.handlers.effects.popleft():
            case Launch(pod):
                entry = self.handlers.memory.entries.get(pod.pod)
                if entry is not None and entry.is_live and entry.pod.stop is None:
                    self.directories.setdefault(pod.pod, Directory())
            case Stop(name):
                self.ask_to_stop(name)
            case Forget():
                pass

    def ask_to_stop(self, name: str) -> None:
        found = self.directories.get(name)
        if found is not None:
            found.is_asked = True
            if found.phase == "prepared":  # it is sealed
                found.phase, found.ending = "over", Ending(refusal=Refusal.NEVER_RAN)

    def supervise(self) -> None:
        for name, found in self.directories.items():
            if found.phase == "prepared" and self.random.random() < 0.7:
                assert name not in self.ran, f"{name} ran twice"
                self.ran.add(name)
                found.phase = "running"
            elif found.phase == "running" and found.is_watched and found.is_asked:
                if self.random.random() > GRACE_SHARE:
                    continue
                found.phase, found.ending = "over", Ending(signal=15, stop_reason="stopped")

    def look(self) -> None:
        at_s = self.now.timestamp()
        queued = {e.pod.pod for e in self.handlers.effects if isinstance(e, Launch)}
        seen = []
        for entry in self.handlers.live():
            name, stop = entry.pod.pod, entry.pod.stop
            found = self.directories.get(name)
            if name in queued:
                continue
            if found is None and stop is None:
                self.directories[name] = Directory()
            elif found is None and stop is not None:
                never = Ending(refusal=Refusal.NEVER_RAN, stop_reason=stop.reason)
                seen.append(Seen(name, None, at_s, never))
            elif found is not None and found.phase == "over":
                seen.append(Seen(name, None, at_s, found.ending))
            elif found is not None and found.phase == "running":
                ending = None if found.is_watched else Ending(loss=Loss.SUPERVISOR)
                seen.append(Seen(name, at_s, at_s, ending))
            elif stop is not None:
                self.ask_to_stop(name)
        self.handlers.on_seen(seen)

    # Everything.

    def deliver(self) -> None:
        """One of the oldest records."""
        if self.bus:
            to, record = self.bus.pop(self.random.randrange(min(3, len(self.bus))))
            headers = {"ce_id": record.event_id}
            received = Received(record.topic, 0, 0, record.key, headers, record.value)
            if to is Service.LAUNCHER:
                self.receive_record(received)
            elif self.has_begun:
                self.handlers.on_records([received], (), frozenset())

    def drop(self) -> None:
        """A record is lost."""
        if self.bus:
            self.bus.pop()

    def wait(self) -> None:
        self.now += timedelta(seconds=self.random.choice((0.05, 0.4, 2.0)))

    def times(self) -> None:
        self.ring()
        self.handlers.on_time(50)

    def stop(self) -> None:
        """The user's stop; REST republishes it until the Launcher acknowledges it."""
        self.is_stopped = True
        stop: dict[str, object] = {"execution": Execution.STOP, "revision": 2}
        self.receive(self.request.model_copy(update=stop))

    def kill_all(self, *, forgets: bool) -> None:
        """Every process: what was on the bus is gone, and the pods die with their supervisors."""
        self.bus.clear()
        for found in self.directories.values():
            found.is_watched = found.phase == "prepared"  # its supervisor is yet to come
        self.start_agent()
        if forgets:
            self.job_with_tasks, rows, as_of = self.random.choice(self.stored[-FORGOTTEN_STEPS:])
            self.rows = dict(rows)
            self.resync(as_of)
        self.stored.clear()

    def resync(self, as_of: datetime) -> None:
        """The Launcher found that its database was restored; its peer learns it from the bus."""
        for row in list(self.rows.values()):
            if row.is_open and row.topic is not None:
                self.publish_again(row, resync)
        lost = ServiceStarted(
            service="launcher", database="", revision=2, restored=2, as_of=as_of, at=self.now
        )
        self.handlers.on_restored(lost.restored, lost.lost_since)

    def step(self) -> None:
        acts = [self.send, self.carry_out, self.supervise, self.look, self.times, self.wait]
        self.stored.append((self.job_with_tasks, dict(self.rows), self.now))
        self.random.choice([*acts, self.begin, self.drop, *[self.deliver] * 6])()

    def fair_step(self) -> None:
        """Everybody does what is due."""
        self.now += timedelta(seconds=0.25)
        self.begin()
        self.send()
        while self.bus:
            self.deliver()
        while self.handlers.effects:
            self.carry_out()
        self.supervise()
        self.look()
        self.times()
        self.stop()

    def end(self, seed: int) -> None:
        """Nothing more happens to anybody: then the job ends."""
        began = self.now
        while self.job_with_tasks is None or not self.job_with_tasks.job.is_final:
            self.stored.append((self.job_with_tasks, dict(self.rows), self.now))
            self.fair_step()
            assert self.now - began < LONGEST, f"seed {seed}: {self.job_with_tasks}, {self.rows}"


@pytest.mark.parametrize("forgets", [False, True], ids=["kept", "last-commits-lost"])
def test_a_stopped_job_ends_however_everything_dies(
    forgets: bool, tmp_path: Path, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(HISTORIES):
        seed = secrets.randbits(32)
        home = tmp_path / str(number)
        home.mkdir()
        request = make_request("j", {"worker": 1 + seed % 3})
        world = World(request, home, random.Random(seed))
        monkeypatch.setattr(time, "time", lambda world=world: world.now.timestamp())
        asked, killed = world.random.randrange(STEPS), world.random.randrange(STEPS)
        for step in range(STEPS):
            if step == asked:
                world.stop()
            if step == killed:
                world.kill_all(forgets=False)
            world.step()
        if forgets:  # it has ended and both sides are silent, but the Launcher's disk knows nothing
            world.end(seed)
            for _ in range(SILENT_AFTER):
                world.fair_step()
        world.kill_all(forgets=forgets)
        world.end(seed)
        world.journal.close()
