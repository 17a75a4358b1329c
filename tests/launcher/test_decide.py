"""What each word means for a job: one test for each promise of the Launcher."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from launcher.domain.decide import decide
from launcher.domain.model import Life, Policy, wake_at
from muster.contracts.gangs import GangRequest
from muster.contracts.jobs import Execution, JobRequest, JobState, JobStatus, TaskState
from muster.contracts.pods import PodAction, PodRequest, PodState, PodStatus
from muster.contracts.topics import Kind
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.decisions import Dead, Due, Input, Say
from muster.errors import Broken
from muster.states import JobPhase, TaskPhase
from muster.testing.peers import FakeAgents, FakeScheduler, failure, never_ran, stopped

MakeRequest = Callable[..., JobRequest]

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy()
USER_FAILURE = failure(Behavior.UNKNOWN)
SYNTAX_ERROR = failure(Behavior.PERMANENT)
TIMERS = 10
"""As many may be due at once."""
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


class Story:
    """A job, its Scheduler and its agents; every word arrives at once and in order."""

    def __init__(self, request: JobRequest, policy: Policy = POLICY) -> None:
        self.now = START
        self.policy = policy
        self.request = request
        self.life: Life | None = None
        self.scheduler = FakeScheduler()
        self.agents = FakeAgents()
        self.says: list[Say] = []
        self.tell(request)

    def tell(self, given: Input) -> "Story":
        decision = decide(self.request.job, self.life, given, now=self.now, policy=self.policy)
        self.life = decision.state
        for say in decision.says:
            revision = 1 + sum(s.subject == say.subject and s.kind is say.kind for s in self.says)
            word = say.word.model_copy(update={"revision": revision})
            self.says.append(replace(say, word=word))
            if isinstance(word, GangRequest):
                self.scheduler.hear(word)
            elif isinstance(word, PodRequest):
                known = set(self.agents.statuses)
                self.agents.hear(word, self.now)
                for pod in set(self.agents.statuses) - known:
                    if self.agents.statuses[pod].state is PodState.FAILED:
                        self.tell(self.agents.statuses[pod])
        return self

    # What happens.

    def place(self, node: str = "n1") -> "Story":
        for gang in self.scheduler.waiting():
            self.tell(self.scheduler.place(gang, node))
        return self

    def start(self) -> "Story":
        for pod in self.agents.live():
            if self.agents.statuses[pod].started_at is None:
                self.tell(self.agents.start(pod, self.now))
        return self

    def end(self, pod: str, verdict: Verdict | None = None) -> "Story":
        return self.tell(self.agents.end(f"{self.request.job}-{pod}", self.now, verdict))

    def end_stopped(self) -> "Story":
        for pod in sorted(self.agents.stopping):
            self.tell(self.agents.end(pod, self.now, stopped()))
        return self

    def lose(self, node: str) -> "Story":
        for word in self.scheduler.lose(node):
            self.tell(word)
        return self

    def preempt(self, grace_s: float = 10) -> "Story":
        for gang in self.scheduler.placed():
            self.tell(self.scheduler.give_back(gang, self.now + timedelta(seconds=grace_s)))
        return self

    def stop(self) -> "Story":
        update = {"execution": Execution.STOP, "stop_requested_by": "ada"}
        return self.tell(self.request.model_copy(update=update))

    def wait(self, seconds: float) -> "Story":
        """Let time pass; the timers that the job asked for ring."""
        self.now += timedelta(seconds=seconds)
        for _ in range(TIMERS):
            due = wake_at(self.job)
            if due is None or due > self.now:
                return self
            self.tell(Due())
        raise AssertionError("a timer rings for ever")

    # What is seen.

    @property
    def job(self) -> Life:
        assert self.life is not None
        return self.life

    def phase(self) -> JobPhase:
        return self.job.job.phase

    def status(self) -> JobStatus:
        """The newest word about the job."""
        return [s.word for s in self.says if isinstance(s.word, JobStatus)][-1]

    def stops(self) -> dict[str, PodRequest]:
        """The asks to stop, by pod."""
        return {
            s.word.pod: s.word
            for s in self.says
            if isinstance(s.word, PodRequest) and s.word.action is PodAction.STOP
        }

    def runs(self) -> list[PodRequest]:
        """The asks to run."""
        words = [s.word for s in self.says if isinstance(s.word, PodRequest)]
        return [w for w in words if w.action is PodAction.RUN]

    def open_subjects(self) -> set[str]:
        """The gangs and pods that the Launcher does not yet consider over."""
        newest = {(s.kind, s.subject): s.is_open for s in self.says if s.kind is not Kind.JOB}
        return {subject for (_, subject), is_open in newest.items() if is_open}


@pytest.fixture
def story(make_request: MakeRequest) -> Callable[..., Story]:
    return lambda *args, **kwargs: Story(make_request("j1", *args, **kwargs))


Tell = Callable[..., Story]


def test_a_job_asks_for_one_gang_of_all_its_tasks(story: Tell) -> None:
    told = story({"ps": 1, "worker": 2})
    gang = told.scheduler.gangs["j1-0"]
    assert [p.pod for p in gang.pods] == ["j1-0-ps-0-0", "j1-0-worker-0-0", "j1-0-worker-1-0"]
    assert gang.pods[0].ports == {"http": 1}
    assert (gang.user, gang.priority, gang.virtual_cluster) == ("ada", 10, "default")


def test_tasks_that_may_start_singly_are_gangs_of_their_own(story: Tell) -> None:
    told = story({"worker": 2}, gang=False)
    assert sorted(told.scheduler.gangs) == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    told.tell(told.scheduler.place("j1-0-worker-1-0", "n1"))
    assert [r.pod for r in told.runs()] == ["j1-0-worker-1-0"]


def test_no_pod_runs_before_its_whole_gang_has_a_place(story: Tell) -> None:
    told = story({"worker": 3})
    told.tell(told.scheduler.place("j1-0", "n1", 2))
    assert told.runs() == []
    told.tell(told.scheduler.place("j1-0", "n2"))
    assert [r.node for r in told.runs()] == ["n1", "n1", "n2"]


def test_a_pod_is_told_of_its_peers_and_of_what_it_got(story: Tell) -> None:
    asked = story({"ps": 1, "worker": 2}).place().runs()[1]
    assert (asked.node, asked.journal, asked.gang) == ("n1", "journal-of-n1", "j1-0")
    run = asked.run
    assert run is not None
    assert [(p.role, p.index, p.address) for p in run.peers] == [
        ("ps", 0, "127.0.0.1"),
        ("worker", 0, "127.0.0.1"),
        ("worker", 1, "127.0.0.1"),
    ]
    assert all(peer.ports["http"] for peer in run.peers)
    assert (run.role, run.index, run.job_name) == ("worker", 0, "ada~name-j1")
    assert [(r.name, r.instances, r.gpus) for r in run.roles] == [("ps", 1, 1), ("worker", 2, 1)]


def test_a_job_runs_when_its_first_task_does_and_succeeds_with_the_last(story: Tell) -> None:
    told = story({"worker": 2}).place()
    assert told.phase() is JobPhase.WAITING
    told.tell(told.agents.start("j1-0-worker-1-0", told.now))
    assert told.status().state is JobState.RUNNING
    told.start().end("0-worker-0-0").end("0-worker-1-0")
    final = told.status()
    assert (final.state, final.attempt) == (JobState.SUCCEEDED, 0)
    assert final.verdict is not None
    assert final.verdict.code == 0
    assert [t.state for t in final.task_roles[0].tasks] == [TaskState.SUCCEEDED] * 2
    assert told.open_subjects() == set()
    assert told.says[-1].encore or any(s.encore for s in told.says)


def test_why_it_waits_is_told_until_it_has_a_place(story: Tell) -> None:
    told = story()
    told.tell(told.scheduler.defer("j1-0", "2 of 8 GPUs are free.")).wait(1)
    reason = told.status().reason
    assert reason is not None
    assert reason.text == "2 of 8 GPUs are free."
    assert told.place().wait(1).status().reason is None


def test_that_a_new_job_waits_is_told_with_the_first_reason(story: Tell) -> None:
    told = story().wait(1)
    assert not any(s.kind is Kind.JOB for s in told.says)
    told.tell(told.scheduler.defer("j1-0", "No room.")).wait(0.4)
    assert told.status().reason is not None
    assert sum(s.kind is Kind.JOB for s in told.wait(10).says) == 1
    alone = story().wait(2)
    assert alone.status().state is JobState.WAITING


def test_details_are_told_together(story: Tell) -> None:
    told = story({"worker": 20}).place().start()
    assert sum(s.kind is Kind.JOB for s in told.says) == 1
    told.wait(1)
    assert sum(s.kind is Kind.JOB for s in told.says) == 2
    assert {t.state for t in told.status().task_roles[0].tasks} == {TaskState.RUNNING}


def test_a_gang_lets_go_of_what_has_ended_while_the_rest_runs(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    gang = told.scheduler.gangs["j1-0"]
    assert [p.pod for p in gang.pods] == ["j1-0-worker-1-0"]
    assert [r.pod for r in gang.released] == ["j1-0-worker-0-0"]
    assert told.phase() is JobPhase.RUNNING


# Completion.


def test_one_failure_ends_the_attempt_and_the_others_are_stopped(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    assert told.phase() is JobPhase.COMPLETING
    stop = told.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("completed", 30)
    told.end_stopped()
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict == USER_FAILURE
    assert final.trigger is not None
    assert (final.trigger.role, final.trigger.index) == ("worker", 1)
    first = final.task_roles[0].tasks[0]
    assert (first.state, first.verdict and first.verdict.code) == (TaskState.STOPPED, -220)


def test_a_task_that_failed_before_its_stop_came_is_shown_as_it_was(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-1-0", USER_FAILURE)
    told.end("0-worker-0-0", SYNTAX_ERROR)
    final = told.status()
    assert [t.verdict for t in final.task_roles[0].tasks] == [SYNTAX_ERROR, USER_FAILURE]
    assert [t.state for t in final.task_roles[0].tasks] == [TaskState.FAILED] * 2
    assert final.verdict == USER_FAILURE


def test_a_failure_under_preemption_is_the_preemptions(story: Tell) -> None:
    told = story({"worker": 2}).place().start().preempt()
    told.end("0-worker-1-0", USER_FAILURE).end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    assert told.job.job.accountable == 0


def test_enough_successes_end_the_attempt_well_whatever_else_runs(story: Tell) -> None:
    told = story({"worker": 3}, role={"min_succeeded_instances": 2}).place().start()
    told.end("0-worker-0-0").end("0-worker-2-0").end_stopped()
    assert told.status().state is JobState.SUCCEEDED


def test_failures_below_the_bound_are_borne(story: Tell) -> None:
    told = story({"worker": 3}, role={"min_failed_instances": 2}).place().start()
    told.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0")
    assert told.phase() is JobPhase.RUNNING
    assert told.end("0-worker-2-0").status().state is JobState.SUCCEEDED


def test_a_bound_of_minus_one_never_ends_the_attempt(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start()
    told.end("0-worker-0-0", USER_FAILURE).end("0-worker-1-0", USER_FAILURE)
    assert told.status().state is JobState.SUCCEEDED


def test_nothing_succeeds_by_losing_every_task(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start().lose("n1")
    assert told.phase() is JobPhase.BACKOFF


def test_nothing_succeeds_by_being_refused(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}, gang=False)
    for gang in list(told.scheduler.waiting()):
        told.tell(told.scheduler.refuse(gang))
    assert told.status().state is JobState.FAILED


def test_no_gang_runs_without_the_pod_that_was_lost_before_it_ran(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1})
    told.scheduler.place("j1-0", "n1", 1)
    told.scheduler.place("j1-0", "n2")
    told.lose("n1")
    assert told.runs() == []
    assert told.stops() == {}
    assert told.phase() is JobPhase.BACKOFF


def test_no_gang_goes_on_without_the_pod_that_its_agent_refused(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place()
    told.tell(told.agents.start("j1-0-worker-0-0", told.now))
    told.end("0-worker-1-0", WITHDRAWN).end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    assert told.job.job.accountable == 0


# Retries.


def test_a_users_failure_spends_one_retry_and_the_last_one_counts(story: Tell) -> None:
    told = story(job_retry_count=1).place().start().end("0-worker-0-0", USER_FAILURE)
    assert (told.phase(), told.job.job.attempt) == (JobPhase.WAITING, 1)
    assert told.status().retries.user == 1
    told.place().start().end("1-worker-0-0", USER_FAILURE)
    assert told.status().state is JobState.FAILED
    assert told.status().retries.model_dump() == {"user": 1, "platform": 0, "resource": 0}


def test_a_permanent_failure_is_never_retried(story: Tell) -> None:
    told = story(job_retry_count=5).place().start().end("0-worker-0-0", SYNTAX_ERROR)
    assert told.status().state is JobState.FAILED


@pytest.mark.parametrize(
    "verdict",
    [WITHDRAWN, never_ran(), failure(Behavior.TRANSIENT, Fault.PLATFORM, 253)],
    ids=["withdrawn", "never-ran", "port-conflict"],
)
def test_what_the_platform_breaks_is_retried_at_no_cost(story: Tell, verdict: Verdict) -> None:
    told = story(job_retry_count=0).place().end("0-worker-0-0", verdict)
    assert told.phase() is JobPhase.BACKOFF
    told.wait(1)
    assert (told.phase(), told.job.job.accountable) == (JobPhase.WAITING, 0)
    assert told.place().start().end("1-worker-0-0").status().state is JobState.SUCCEEDED


def test_platform_failures_in_a_row_wait_longer_each_time_up_to_a_bound(story: Tell) -> None:
    told, waits = story(), []
    for attempt in range(12):
        told.place().end(f"{attempt}-worker-0-0", WITHDRAWN)
        retry_at = told.status().retry_at
        assert retry_at is not None
        waits.append((retry_at - told.now).total_seconds())
        told.wait(waits[-1])
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 300


def test_a_long_attempt_makes_the_waits_start_anew(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN).wait(1)
    told.place().start().wait(601).end("1-worker-0-0", WITHDRAWN)
    retry_at = told.status().retry_at
    assert retry_at is not None
    assert retry_at - told.now == timedelta(seconds=1)


def test_a_conflict_over_resources_waits_between_its_bounds(story: Tell) -> None:
    conflict = failure(Behavior.TRANSIENT_CONFLICT, Fault.PLATFORM, 251)
    told = story().place().end("0-worker-0-0", conflict)
    retry_at = told.status().retry_at
    assert retry_at is not None
    assert timedelta(seconds=60) <= retry_at - told.now <= timedelta(seconds=900)
    assert told.wait(900).job.job.retries.resource == 1


@pytest.mark.parametrize("limit", [-1, -2])
def test_a_negative_count_retries_failures_without_end(story: Tell, limit: int) -> None:
    told = story(job_retry_count=limit)
    for attempt in range(3):
        told.place().start().end(f"{attempt}-worker-0-0", USER_FAILURE).wait(600)
    assert told.job.job.attempt == 3


def test_minus_two_retries_success_and_permanent_failure_too(story: Tell) -> None:
    told = story(job_retry_count=-2).place().start().end("0-worker-0-0").wait(600)
    told.place().start().end("1-worker-0-0", SYNTAX_ERROR).wait(600)
    assert told.job.job.attempt == 2


def test_a_task_of_its_own_is_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, role={"task_retry_count": 1}, gang=False).place().start()
    told.end("0-worker-0-0", USER_FAILURE)
    assert told.phase() is JobPhase.RUNNING
    assert told.scheduler.gangs["j1-0-worker-0-0"].pods == ()
    told.place().start().end("0-worker-0-1").end("0-worker-1-0")
    final = told.status()
    assert final.state is JobState.SUCCEEDED
    assert [t.retries for t in final.task_roles[0].tasks] == [1, 0]
    assert [t.accountable_retries for t in final.task_roles[0].tasks] == [1, 0]
    assert final.attempt == 0


def test_tasks_of_a_gang_are_not_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, role={"task_retry_count": 5}).place().start()
    assert told.end("0-worker-0-0", USER_FAILURE).phase() is JobPhase.COMPLETING


def test_a_task_of_its_own_waits_for_its_retry_after_a_platform_failure(story: Tell) -> None:
    told = story({"worker": 2}, gang=False).place().start().end("0-worker-0-0", WITHDRAWN).wait(0.9)
    assert told.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    assert "j1-0-worker-0-1" not in told.scheduler.gangs
    told.wait(0.1)
    assert told.scheduler.gangs["j1-0-worker-0-1"].pods
    told.place().start().end("0-worker-0-1", WITHDRAWN).wait(1.9)
    assert told.job.tasks["worker", 0].phase is TaskPhase.BACKOFF
    told.wait(0.1).place().start().end("0-worker-0-2").end("0-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().task_roles[0].tasks[0].accountable_retries == 0


def test_a_task_that_waits_for_its_retry_is_stopped_with_its_job(story: Tell) -> None:
    told = story({"worker": 1}, gang=False).place().start().end("0-worker-0-0", WITHDRAWN).stop()
    assert told.status().state is JobState.STOPPED
    assert told.open_subjects() == set()


def test_a_new_attempt_starts_with_a_clean_slate(story: Tell) -> None:
    told = story(time_limit_s=100).place().start().wait(10).end("0-worker-0-0", WITHDRAWN)
    over = told.status()
    assert (over.state, over.verdict) == (JobState.WAITING, WITHDRAWN)
    assert over.reason is not None
    assert over.reason.text == "The next attempt begins at 2026-01-01 00:00:11 UTC: It failed."
    assert over.attempt_completed_at == told.now
    told.wait(1)
    begun = told.status()
    assert (begun.attempt, begun.verdict, begun.trigger, begun.retry_at) == (1, None, None, None)
    assert begun.reason is None
    assert (begun.attempt_created_at, begun.attempt_launched_at) == (told.now, None)
    assert begun.attempt_completed_at is None
    assert begun.launched_at == START
    assert begun.created_at == START
    told.wait(500).place().start().wait(99)
    assert told.phase() is JobPhase.RUNNING, "the limit counts anew"
    assert told.status().launched_at == START


def test_an_attempt_that_never_ran_was_never_launched(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", never_ran())
    assert told.status().launched_at is None
    assert told.status().task_roles[0].tasks[0].launched_at is None


# Lost nodes and preemption.


def test_a_lost_node_costs_no_retry_and_the_job_runs_elsewhere(story: Tell) -> None:
    told = story({"worker": 2}, job_retry_count=0).place().start().lose("n1")
    assert told.phase() is JobPhase.BACKOFF
    verdict = told.status().verdict
    assert verdict is not None
    assert (verdict.code, verdict.rule) == (-1001, "node-lost")
    told.wait(1).place("n2").start().end("1-worker-0-0").end("1-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED
    assert told.status().retries.model_dump() == {"user": 0, "platform": 1, "resource": 0}


def test_a_lost_pod_stays_lost_and_is_stopped_when_its_node_comes_back(story: Tell) -> None:
    told = story().place().start().lose("n1")
    stop = told.stops()["j1-0-worker-0-0"].stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == ("node-lost", 5)
    before = told.job
    told.says.clear()
    told.tell(told.agents.statuses["j1-0-worker-0-0"].model_copy(update={"revision": 9}))
    assert told.stops().keys() == {"j1-0-worker-0-0"}
    told.end("0-worker-0-0")
    assert told.says[-1].word.action is PodAction.FORGET  # type: ignore[attr-defined]
    assert told.job.tasks == before.tasks
    assert told.phase() is JobPhase.BACKOFF


def test_peers_that_fail_while_a_node_is_being_lost_are_on_the_platforms_account(
    story: Tell,
) -> None:
    told = story({"worker": 2}, job_retry_count=0)
    told.tell(told.scheduler.place("j1-0", "n1", 1))
    told.tell(told.scheduler.place("j1-0", "n2"))
    told.start().end("0-worker-1-0", USER_FAILURE)
    assert told.phase() is JobPhase.COMPLETING
    told.lose("n1")
    assert told.phase() is JobPhase.BACKOFF
    verdict = told.status().verdict
    assert verdict is not None
    assert verdict.rule == "node-lost"
    assert "worker[1] failed" in verdict.symptom


def test_a_lost_node_does_not_hang_a_stop(story: Tell) -> None:
    told = story().place().start().stop()
    assert told.phase() is JobPhase.STOPPING
    assert told.lose("n1").status().state is JobState.STOPPED


def test_a_preempted_gang_stops_in_its_grace_and_is_retried_at_no_cost(story: Tell) -> None:
    told = story({"worker": 2}, job_retry_count=0).place().start().preempt(grace_s=10)
    assert told.phase() is JobPhase.RUNNING
    asked = told.stops()
    assert {(w.stop.reason, w.stop.grace_s) for w in asked.values() if w.stop} == {
        ("preempted", 10)
    }
    assert len(asked) == 2
    told.end_stopped()
    assert told.phase() is JobPhase.BACKOFF
    told.wait(1)
    assert told.job.job.retries.platform == 1
    assert told.job.job.accountable == 0


def test_a_pod_that_succeeds_in_the_grace_of_its_preemption_has_succeeded(story: Tell) -> None:
    told = story().place().start().preempt().end("0-worker-0-0")
    assert told.status().state is JobState.SUCCEEDED


def test_a_preempted_gang_is_retried_even_where_failures_are_borne(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_failed_instances": -1}).place().start().preempt()
    told.end("0-worker-0-0")
    assert told.phase() is JobPhase.RUNNING
    told.end("0-worker-1-0", stopped())
    assert told.phase() is JobPhase.BACKOFF
    assert (told.status().verdict or USER_FAILURE).rule == "preempted"


def test_why_it_is_preempted_is_told(story: Tell) -> None:
    reason = story().place().start().wait(1).preempt().wait(1).status().reason
    assert reason is not None
    assert reason.text == "For other-0."


def test_a_gang_that_is_to_be_given_back_before_it_ran_is_asked_for_anew(story: Tell) -> None:
    told = story({"worker": 2})
    told.tell(told.scheduler.place("j1-0", "n1", 1)).preempt()
    assert told.phase() is JobPhase.BACKOFF
    assert told.runs() == []
    assert told.scheduler.gangs["j1-0"].pods == ()
    assert told.wait(1).scheduler.gangs["j1-1"].pods


def test_a_preempted_task_of_its_own_is_retried_alone(story: Tell) -> None:
    told = story({"worker": 2}, gang=False).place().start()
    told.tell(told.scheduler.give_back("j1-0-worker-0-0", told.now))
    assert told.stops().keys() == {"j1-0-worker-0-0"}
    told.end_stopped().wait(1)
    assert told.scheduler.gangs["j1-0-worker-0-1"].pods
    assert told.phase() is JobPhase.RUNNING


def test_what_can_never_run_fails_for_good_and_says_why(story: Tell) -> None:
    told = story(job_retry_count=3)
    told.tell(told.scheduler.refuse("j1-0"))
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-200, "It is too large.")
    assert told.open_subjects() == set()


# Stop, time limit.


@pytest.mark.parametrize("gang", [True, False])
def test_a_waiting_job_is_stopped_at_once(story: Tell, gang: bool) -> None:
    told = story(gang=gang).stop()
    final = told.status()
    assert final.state is JobState.STOPPED
    assert final.verdict is not None
    assert (final.verdict.code, final.verdict.cause) == (-210, "ada stopped the job.")
    assert told.open_subjects() == set()


def test_a_running_job_is_stopping_until_its_pods_have_ended(story: Tell) -> None:
    told = story({"worker": 2}).place().start().stop()
    assert told.status().state is JobState.STOPPING
    told.end("0-worker-0-0", stopped())
    assert told.phase() is JobPhase.STOPPING
    told.end("0-worker-1-0", stopped())
    assert told.status().state is JobState.STOPPED
    assert told.open_subjects() == set()


def test_a_job_that_waits_for_its_retry_is_stopped_at_once(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN).stop()
    assert told.status().state is JobState.STOPPED
    assert told.status().retries.platform == 0


def test_when_an_attempt_ended_is_not_changed_by_a_later_stop(story: Tell) -> None:
    told = story().place().end("0-worker-0-0", WITHDRAWN)
    ended = told.now
    told.now += timedelta(seconds=0.5)
    assert told.stop().status().attempt_completed_at == ended
    assert told.status().completed_at == told.now


def test_a_stop_leaves_an_outcome_that_is_known_and_final(story: Tell) -> None:
    told = story({"worker": 2}, role={"min_succeeded_instances": 1}).place().start()
    told.end("0-worker-0-0").stop()
    assert told.status().state is JobState.STOPPING
    assert told.end_stopped().status().state is JobState.SUCCEEDED


def test_a_stop_of_a_job_that_nobody_knows_makes_it_and_ends_it(make_request: MakeRequest) -> None:
    request = make_request("j1").model_copy(update={"execution": Execution.STOP, "spec": None})
    told = Story(request)
    assert told.status().state is JobState.STOPPED
    assert not told.says[-1].is_open


def test_a_job_that_runs_too_long_fails_for_good(story: Tell) -> None:
    told = story(time_limit_s=60, job_retry_count=3).place().wait(1000)
    assert told.phase() is JobPhase.WAITING, "waiting is not running"
    told.start().wait(59)
    assert told.phase() is JobPhase.RUNNING
    told.wait(1).end_stopped()
    final = told.status()
    assert final.state is JobState.FAILED
    assert final.verdict is not None
    assert final.verdict.code == -1004


# Odd words.


def test_a_final_job_moves_no_more(story: Tell) -> None:
    told = story().place().start().end("0-worker-0-0")
    before, said = told.job, len(told.says)
    told.stop().tell(told.request).wait(10_000)
    told.tell(told.scheduler.decisions["j1-0"])
    told.tell(Dead(Kind.GANG, "j1-0"))
    assert told.job == before
    assert len(told.says) == said
    assert wake_at(told.job) is None


def test_the_other_sides_words_about_unknown_jobs_are_answered_as_over() -> None:
    pod = PodStatus(
        pod="gone-0-worker-0-0",
        job="gone",
        gang="gone-0",
        node="n1",
        journal="j",
        boot="b",
        state=PodState.RUNNING,
    )
    now = {"now": START, "policy": POLICY}
    answer = decide("gone", None, pod, **now)  # type: ignore[arg-type]
    assert answer.state is None
    assert [s.word.action for s in answer.says] == [PodAction.STOP]  # type: ignore[attr-defined]
    ended = pod.model_copy(update={"state": PodState.FAILED})
    answer = decide("gone", None, ended, **now)  # type: ignore[arg-type]
    assert [s.word.action for s in answer.says] == [PodAction.FORGET]  # type: ignore[attr-defined]


def test_numbers_that_a_restored_backup_has_forgotten_are_not_given_again(story: Tell) -> None:
    told = story()
    ask = told.scheduler.gangs["j1-0"].model_copy(update={"gang": "j1-4", "revision": 0})
    told.scheduler.gangs["j1-4"] = ask
    told.tell(told.scheduler._decide("j1-4", []))
    assert told.scheduler.gangs["j1-4"].pods == ()
    told.place().end("0-worker-0-0", WITHDRAWN).wait(1)
    assert told.job.job.attempt == 5


def test_a_pod_whose_start_a_restored_backup_has_forgotten_goes_on(story: Tell) -> None:
    told = story({"worker": 2})
    forgotten = told.job
    told.place().start()
    told.life = forgotten
    for status in list(told.agents.statuses.values()):
        told.tell(status)
    assert told.phase() is JobPhase.RUNNING
    assert {t.phase for t in told.job.tasks.values()} == {TaskPhase.RUNNING}
    told.end("0-worker-0-0").end("0-worker-1-0")
    assert told.status().state is JobState.SUCCEEDED


def test_an_end_tells_that_the_pod_ran_where_no_other_word_came(story: Tell) -> None:
    told = story({"worker": 2}).place()
    told.now += timedelta(seconds=5)
    for pod in told.agents.live():
        told.agents.start(pod, told.now)
    told.end("0-worker-0-0", USER_FAILURE)
    assert told.status().launched_at == told.now
    assert told.status().task_roles[0].tasks[0].launched_at == told.now


def test_a_late_word_about_an_earlier_pod_of_a_task_leaves_the_present_one_alone(
    story: Tell,
) -> None:
    told = story(role={"task_retry_count": 1}, gang=False).place().start()
    told.end("0-worker-0-0", USER_FAILURE).place().start()
    before = told.job.tasks
    late = told.agents.statuses["j1-0-worker-0-0"].model_copy(update={"revision": 99})
    told.tell(late)
    assert told.job.tasks == before
    assert told.says[-1].word.action is PodAction.FORGET  # type: ignore[attr-defined]


def test_a_pod_of_an_attempt_that_is_forgotten_is_stopped_and_its_number_is_used(
    story: Tell,
) -> None:
    told = story().place()
    status = told.agents.statuses["j1-0-worker-0-0"]
    told.tell(status.model_copy(update={"pod": "j1-3-worker-0-0", "gang": "j1-3"}))
    assert told.stops().keys() == {"j1-3-worker-0-0"}
    told.end("0-worker-0-0", WITHDRAWN).wait(1)
    assert told.job.job.attempt == 4


def test_a_pod_that_only_its_agent_remembers_to_have_accepted_goes_on(story: Tell) -> None:
    told = story({"worker": 2})
    forgotten = told.job
    told.place()
    told.life = forgotten
    for status in list(told.agents.statuses.values()):
        told.tell(status)
    assert {t.phase for t in told.job.tasks.values()} == {TaskPhase.PLACED}
    told.stop().end_stopped()
    assert told.status().state is JobState.STOPPED


def test_a_pod_that_nobody_asked_for_is_passed_over(story: Tell) -> None:
    told = story()
    decision = told.scheduler.place("j1-0", "n1")
    stranger = decision.pods[0].model_copy(update={"pod": "j1-0-worker-7-0"})
    told.tell(decision.model_copy(update={"pods": (stranger, *decision.pods)}))
    assert [r.pod for r in told.runs()] == ["j1-0-worker-0-0"]


def test_what_is_let_go_is_told_once(story: Tell) -> None:
    told = story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    said = len(told.says)
    told.wait(100)
    assert len(told.says) == said
    assert wake_at(told.job) is None


def test_a_dead_letter_shows_on_the_job_until_the_other_side_speaks(story: Tell) -> None:
    told = story().tell(Dead(Kind.GANG, "j1-0"))
    assert "gang j1-0" in (told.status().dead_letter or "")
    assert told.place().wait(1).status().dead_letter is None
    told.tell(Dead(Kind.POD, "j1-0-worker-0-0"))
    assert "pod j1-0-worker-0-0" in (told.status().dead_letter or "")
    assert told.start().status().dead_letter is None


def test_a_job_without_tasks_is_a_dead_letter(make_request: MakeRequest) -> None:
    with pytest.raises(Broken):
        Story(make_request("j1").model_copy(update={"spec": None}))
