"""The job state machine under any order of messages: first that nothing wrong happens, then
that every job ends.

Messages of the Launcher, a Scheduler and the agents are kept for ever and delivered in any order,
any number of times; pods run, fail, are lost, preempted and refused at any time.
"""

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from launcher.domain.decide import decide
from launcher.domain.model import ACTIVE, DONE, JobWithTasks, Policy, wake_at
from launcher_jobs import least_of, specs, verdicts
from launcher_peers import FakeAgents, FakeScheduler, stopped
from muster.contracts.gangs import GangDecision, GangRequest
from muster.contracts.jobs import (
    Execution,
    JobRequest,
    JobSpec,
    JobState,
    JobStatus,
)
from muster.contracts.model import StateMessage
from muster.contracts.pods import PodAction, PodRequest, PodStatus
from muster.contracts.topics import Kind
from muster.contracts.verdicts import Fault, Verdict
from muster.decisions import Due, Input, Publish
from muster.ids import parse_pod
from seeds import how_many

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "job1"
POLICY = Policy()
NODES = ("n1", "n2")
MANY_STEPS = 400
FINAL = {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}


class Lives(RuleBasedStateMachine):
    """One job between its Launcher, a Scheduler and the agents."""

    @initialize(spec=specs())
    def submit(self, spec: JobSpec) -> None:
        self.now = NOW
        self.job_with_tasks: JobWithTasks | None = None
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.received: dict[tuple[str, str], int] = {}
        self.outgoing: dict[tuple[Kind, str], Publish] = {}
        self.log: list[GangRequest | PodRequest] = []
        self.statuses: list[JobStatus] = []
        self.messages: list[StateMessage] = []
        self.runs: set[str] = set()
        self.lost: set[str] = set()
        self.dead: set[str] = set()
        self.user_failures = 0
        self.deadlines: dict[str, datetime] = {}
        self.request = JobRequest(
            revision=1,
            job=JOB,
            name="j",
            user="u",
            execution=Execution.START,
            submitted_at=NOW,
            spec=spec,
        )
        self.receive(self.request)

    def receive(self, given: Input) -> None:
        """Give the Launcher an input, as the exchange would: a message only where it is new."""
        if isinstance(given, StateMessage):
            kind, subject = _subject(given)
            if given.revision <= self.received.get((kind, subject), 0):
                return
            self.received[kind, subject] = given.revision
        before = self.job_with_tasks
        decision = decide(JOB, before, given, now=self.now, policy=POLICY)
        self.check_final(before, decision.state, decision.messages)
        self.job_with_tasks = decision.state
        for publish in decision.messages:
            self.note(publish)

    def check_final(
        self,
        before: JobWithTasks | None,
        after: JobWithTasks | None,
        published: tuple[Publish, ...],
    ) -> None:
        if before is None or not before.job.is_final:
            return
        assert after is not None
        assert after.job.phase is before.job.phase, "a final state moved"
        assert after.tasks == before.tasks, "a task of a final job moved"
        assert not [s for s in published if s.kind is Kind.JOB], "a final job was published again"

    def note(self, publish: Publish) -> None:
        old = self.outgoing.get((publish.kind, publish.subject))
        revision = old.message.revision + 1 if old else 1
        message = publish.message.model_copy(update={"revision": revision})
        self.outgoing[publish.kind, publish.subject] = Publish(
            publish.kind,
            publish.subject,
            publish.topic,
            publish.key,
            message,
            publish.is_open,
            publish.delayed_repeats,
        )
        match message:
            case PodRequest(action=PodAction.RUN):
                self.check_run(message)
                self.log.append(message)
            case PodRequest():
                self.check_stop(message)
                self.log.append(message)
            case GangRequest():
                assert message.submitted_at == NOW or not message.pods, (
                    "an attempt lost the job's age"
                )
                self.log.append(message)
            case JobStatus():
                self.statuses.append(message)

    def check_run(self, message: PodRequest) -> None:
        assert message.pod not in self.runs, "a pod's name came back"
        self.runs.add(message.pod)
        assert message.run is not None
        decided = self.scheduler.decisions[message.gang]
        assert decided.pods, "a pod was run whose gang is over"
        assert self.job_with_tasks is not None
        if self.job_with_tasks.job.spec.gang:
            placed = {
                (role.role, index): role.addresses[at]
                for role in message.run.peers
                for index, at in enumerate(role.address_of)
                if at is not None
            }
            needed = {
                (role.name, index)
                for role in self.job_with_tasks.job.spec.task_roles
                for index in range(least_of(role))
            }
            assert needed <= placed.keys(), "a gang was run before what it needs was placed"
            assert all(placed.values())
            assert (message.run.role, message.run.index) in placed

    def check_stop(self, message: PodRequest) -> None:
        if message.stop is not None and message.stop.reason == "preempted":
            until = self.deadlines[message.gang]
            assert message.stop.grace_s <= max(0.0, (until - self.now).total_seconds())

    # What the peers do.

    @rule()
    def deliver_newest(self) -> None:
        """The newest messages arrive, from the Launcher and to it."""
        for publish in list(self.outgoing.values()):
            if isinstance(publish.message, GangRequest | PodRequest):
                self.deliver(publish.message)
        for message in (*self.scheduler.decisions.values(), *self.agents.statuses.values()):
            self.receive(message)

    @rule(data=st.data())
    def deliver_any_to_peers(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from(self.log)))

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def deliver_any_to_launcher(self, data: st.DataObject) -> None:
        self.receive(data.draw(st.sampled_from(self.messages)))

    def deliver(self, message: GangRequest | PodRequest) -> None:
        if isinstance(message, GangRequest):
            self.scheduler.receive(message)
        elif message.node not in self.dead:
            self.agents.receive(message, self.now)
        self.gather()

    def gather(self) -> None:
        """All messages of the peers stay on the bus for ever."""
        for message in (*self.scheduler.decisions.values(), *self.agents.statuses.values()):
            if message not in self.messages[-40:]:
                self.messages.append(message)

    @precondition(lambda self: self.scheduler.waiting())
    @rule(data=st.data(), node=st.sampled_from(NODES), count=st.sampled_from([None, 1]))
    def place(self, data: st.DataObject, node: str, count: int | None) -> None:
        if node not in self.dead:
            gang = data.draw(st.sampled_from(self.scheduler.waiting()))
            self.scheduler.place(gang, node, count)
            self.gather()

    @precondition(lambda self: self.scheduler.waiting())
    @rule(data=st.data(), how=st.sampled_from(["defer", "defer", "defer", "refuse"]))
    def do_not_place(self, data: st.DataObject, how: str) -> None:
        gang = data.draw(st.sampled_from(self.scheduler.waiting()))
        if how == "refuse" and gang not in self.scheduler.placed():
            self.scheduler.refuse(gang)
        else:
            self.scheduler.defer(gang, "No room.")
        self.gather()

    @precondition(lambda self: self.scheduler.placed())
    @rule(data=st.data(), preemptor=st.sampled_from(["other-0", None]))
    def preempt(self, data: st.DataObject, preemptor: str | None) -> None:
        gang = data.draw(st.sampled_from(self.scheduler.placed()))
        self.deadlines[gang] = self.now + timedelta(seconds=10)
        self.scheduler.preempt(gang, self.deadlines[gang], preemptor)
        self.gather()

    @precondition(lambda self: any(map(self.scheduler.surplus, self.scheduler.placed())))
    @rule(data=st.data(), preemptor=st.sampled_from(["other-0", None]))
    def shrink(self, data: st.DataObject, preemptor: str | None) -> None:
        gangs = [gang for gang in self.scheduler.placed() if self.scheduler.surplus(gang)]
        gang = data.draw(st.sampled_from(gangs))
        pods = self.scheduler.surplus(gang)
        only = data.draw(st.sets(st.sampled_from(pods), min_size=1))
        self.deadlines[gang] = self.now + timedelta(seconds=10)
        self.scheduler.preempt(gang, self.deadlines[gang], preemptor, only)
        self.gather()

    @precondition(lambda self: self.scheduler.placed())
    @rule(node=st.sampled_from(NODES))
    def lose(self, node: str) -> None:
        for message in self.scheduler.lose(node):
            self.lost |= {pod.pod for pod in message.pods if pod.state == "lost"}
        self.dead.add(node)
        self.gather()

    @precondition(lambda self: self.dead)
    @rule()
    def return_nodes(self) -> None:
        self.dead.clear()

    def live(self) -> list[str]:
        """The live pods on nodes that can be reached."""
        return [p for p in self.agents.live() if self.agents.requests[p].node not in self.dead]

    @precondition(lambda self: self.live())
    @rule()
    def start(self) -> None:
        for pod in self.live():
            if self.agents.statuses[pod].started_at is None:
                self.agents.start(pod, self.now)
        self.gather()

    @precondition(lambda self: self.live())
    @rule(data=st.data(), verdict=st.none() | verdicts)
    def end(self, data: st.DataObject, verdict: Verdict | None) -> None:
        self.end_pod(data.draw(st.sampled_from(self.live())), verdict)

    def end_pod(self, pod: str, verdict: Verdict | None) -> None:
        if pod in self.agents.stopping and verdict is not None:
            verdict = stopped()
        self.agents.end(pod, self.now, verdict)
        self.user_failures += verdict is not None and verdict.fault is Fault.USER
        self.gather()

    @rule(minutes=st.sampled_from([0.01, 1, 20]))
    def wait(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)
        self.ring()

    def ring(self) -> None:
        assert self.job_with_tasks is not None
        due = wake_at(self.job_with_tasks)
        if due is not None and due <= self.now:
            self.receive(Due())
            again = wake_at(self.job_with_tasks)
            assert again is None or again > self.now, "a timer rings for ever"

    @precondition(lambda self: len(self.messages) > 12)
    @rule()
    def stop(self) -> None:
        self.receive(self.request.model_copy(update={"execution": Execution.STOP, "revision": 2}))

    # What must hold at every step.

    @invariant()
    def no_task_has_two_live_pods(self) -> None:
        if not hasattr(self, "job_with_tasks"):
            return
        tasks = [
            (name.role, name.index)
            for pod in self.agents.live()
            if pod not in self.lost
            for name in [parse_pod(pod)]
        ]
        assert len(tasks) == len(set(tasks)), "two live pods of one task, neither of them lost"

    @invariant()
    def retries_are_counted_right(self) -> None:
        if not hasattr(self, "job_with_tasks") or self.job_with_tasks is None:
            return
        job = self.job_with_tasks.job
        assert job.accountable <= self.user_failures, "a retry was counted that no user owes"
        assert job.retries.user <= self.user_failures
        assert sum(job.retries.model_dump().values()) == job.attempt
        if job.spec.job_retry_count >= 0:
            assert job.accountable <= job.spec.job_retry_count

    @invariant()
    def no_more_gpu_time_is_refunded_than_was_held(self) -> None:
        if not hasattr(self, "job_with_tasks") or self.job_with_tasks is None:
            return
        job = self.job_with_tasks.job
        assert 0 <= job.gpu_time.refunded_s <= job.gpu_time.held_s
        assert 0 <= job.attempt_gpu_s <= job.gpu_time.held_s - job.gpu_time.refunded_s + 1e-6

    @invariant()
    def what_users_see_is_true(self) -> None:
        if not hasattr(self, "job_with_tasks") or self.job_with_tasks is None or not self.statuses:
            return
        seen = self.statuses[-1]
        if self.job_with_tasks.job.is_final:
            assert seen.state in FINAL
            assert seen.verdict is not None
            assert all(task.phase in DONE for task in self.job_with_tasks.tasks.values())

    # And in the end.

    def teardown(self) -> None:
        """From here on every message arrives, pods run to their end, and timers ring."""
        if not hasattr(self, "job_with_tasks"):
            return
        assert self.job_with_tasks is not None
        for _ in range(MANY_STEPS):
            if self.is_at_rest():
                break
            if self.job_with_tasks.job.is_final:  # nodes that were lost come back with their pods
                self.dead.clear()
            self.fair_round()
        assert self.job_with_tasks.job.is_final, f"the job never ends: {self.job_with_tasks}"
        assert wake_at(self.job_with_tasks) is None
        assert self.statuses[-1].state in FINAL
        for (kind, subject), publish in self.outgoing.items():
            assert not publish.is_open, f"{kind} {subject} never ends"
        assert not self.agents.live(), "a pod lives on"
        assert self.agents.forgotten == set(self.agents.statuses), "a pod is not forgotten"
        assert not any(message.pods for message in self.scheduler.decisions.values()), (
            "a gang lives on"
        )

    def is_at_rest(self) -> bool:
        assert self.job_with_tasks is not None
        has_received = all(
            message.revision <= self.received.get(_subject(message), 0)
            for message in (*self.scheduler.decisions.values(), *self.agents.statuses.values())
        )
        is_received = all(
            publish.message.revision <= self.peer_revision(publish)
            for publish in self.outgoing.values()
            if publish.kind is not Kind.JOB
        )
        return (
            self.job_with_tasks.job.is_final
            and has_received
            and is_received
            and not self.agents.live()
        )

    def peer_revision(self, publish: Publish) -> int:
        known = self.scheduler.gangs if publish.kind is Kind.GANG else self.agents.requests
        return known[publish.subject].revision if publish.subject in known else 0

    def fair_round(self) -> None:
        assert self.job_with_tasks is not None
        self.deliver_newest()
        for gang in self.scheduler.waiting():
            self.scheduler.place(gang, "n3")
        self.deliver_newest()
        for pod in self.live():
            if pod in self.agents.stopping:
                self.end_pod(pod, stopped())
            elif (
                self.job_with_tasks.job.phase in ACTIVE
            ):  # later a pod ends only when it is asked to
                self.end_pod(pod, None)
        self.now += timedelta(minutes=16)
        self.ring()


def _subject(message: StateMessage) -> tuple[str, str]:
    match message:
        case JobRequest():
            return ("job", message.job)
        case GangDecision():
            return ("gang", message.gang)
        case PodStatus():
            return ("pod", message.pod)
    raise AssertionError(message)


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=how_many(40, deep=120),
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
