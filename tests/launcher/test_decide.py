"""What each message means for a job: one test for each promise of the Launcher."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from launcher.domain.decide import decide
from launcher.domain.model import Policy, wake_at
from launcher.domain.states import JobPhase, TaskPhase
from launcher_peers import failure
from muster.contracts.gangs import GangClass, GangDecision
from muster.contracts.jobs import JobRequest, JobState, Retries, TaskState
from muster.contracts.model import Reason
from muster.contracts.pods import PodAction, PodState, PodStatus
from muster.contracts.topics import Kind
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.decisions import Due, MessageRejected
from muster.errors import Broken

Story = Any
MakeRequest = Callable[..., JobRequest]
NewStory = Callable[..., Story]

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy()
USER_FAILURE = failure(Behavior.UNKNOWN)
WITHDRAWN = failure(Behavior.TRANSIENT, Fault.PLATFORM, -1013)


def test_a_job_asks_for_one_gang_of_all_its_tasks(new_story: NewStory) -> None:
    story = new_story({"ps": 1, "worker": 2})
    gang = story.scheduler.gangs["j1-0"]
    assert [p.pod for p in gang.pods] == ["j1-0-ps-0-0", "j1-0-worker-0-0", "j1-0-worker-1-0"]
    assert gang.pods[0].ports == {"http": 1}
    assert (gang.user, gang.priority, gang.virtual_cluster) == ("ada", 10, "default")


def test_tasks_that_may_start_singly_are_gangs_of_their_own(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, gang=False)
    assert sorted(story.scheduler.gangs) == ["j1-0-worker-0-0", "j1-0-worker-1-0"]
    story.receive(story.scheduler.place("j1-0-worker-1-0", "n1"))
    assert [r.pod for r in story.runs()] == ["j1-0-worker-1-0"]


def test_no_pod_runs_before_its_whole_gang_has_a_place(new_story: NewStory) -> None:
    story = new_story({"worker": 3})
    story.receive(story.scheduler.place("j1-0", "n1", 2))
    assert story.runs() == []
    story.receive(story.scheduler.place("j1-0", "n2"))
    assert [r.node for r in story.runs()] == ["n1", "n1", "n2"]


def test_a_pods_request_has_its_peers_and_its_devices(new_story: NewStory) -> None:
    asked = new_story({"ps": 1, "worker": 2}).place().runs()[1]
    assert (asked.node, asked.journal, asked.gang) == ("n1", "journal-of-n1", "j1-0")
    run = asked.run
    assert run is not None
    assert [(p.role, p.addresses, p.address_of) for p in run.peers] == [
        ("ps", ("127.0.0.1",), (0,)),
        ("worker", ("127.0.0.1",), (0, 0)),
    ]
    assert all(numbers for peers in run.peers for numbers in peers.ports["http"])
    assert (run.role, run.index, run.job_name) == ("worker", 0, "ada~name-j1")
    assert [(r.name, r.instances, r.gpus) for r in run.roles] == [("ps", 1, 1), ("worker", 2, 1)]


def test_a_job_runs_when_its_first_task_does_and_succeeds_with_the_last(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}).place()
    assert story.phase() is JobPhase.WAITING
    story.receive(story.agents.start("j1-0-worker-1-0", story.now))
    assert story.status().state is JobState.RUNNING
    story.start().end("0-worker-0-0").end("0-worker-1-0")
    final = story.status()
    assert (final.state, final.attempt) == (JobState.SUCCEEDED, 0)
    assert final.verdict is not None
    assert final.verdict.code == 0
    assert [t.state for t in final.task_roles[0].tasks] == [TaskState.SUCCEEDED] * 2
    assert story.open_subjects() == set()
    assert story.published[-1].delayed_repeats or any(s.delayed_repeats for s in story.published)


def test_the_status_has_the_reason_of_a_wait_until_the_placement(new_story: NewStory) -> None:
    story = new_story()
    story.receive(story.scheduler.defer("j1-0", "2 of 8 GPUs are free.")).wait(1)
    reason = story.status().reason
    assert reason is not None
    assert reason.text == "2 of 8 GPUs are free."
    assert story.place().wait(1).status().reason is None


def test_a_placed_task_shows_what_it_waits_for_on_its_node_until_it_runs(
    new_story: NewStory,
) -> None:
    story, pod = new_story({"worker": 2}).place(), "j1-0-worker-1-0"
    why = Reason(code="not-taken", text="exceeded quota " + "q" * 1000)

    def shown() -> list[str | None]:
        status = story.wait(1).status()
        found = [status.reason, *(task.reason for task in status.task_roles[0].tasks)]
        return [reason and reason.text[:14] for reason in found]

    story.receive(story.agents.hold_up(pod, why))
    assert shown() == ["exceeded quota", None, "exceeded quota"]
    held = story.status().task_roles[0].tasks[1].reason
    assert held is not None
    assert len(held.text) == 500
    story.receive(story.agents.hold_up(pod, None))
    assert shown() == [None, None, None]
    story.receive(story.agents.hold_up(pod, why))
    assert shown()[2] == "exceeded quota"
    story.start()
    assert shown() == [None, None, None]


def test_a_tasks_next_attempt_does_not_wait_for_what_the_last_one_did(new_story: NewStory) -> None:
    story, pod = new_story(gang=False, role={"task_retry_count": 1}).place(), "j1-0-worker-0-0"
    story.receive(story.agents.hold_up(pod, Reason(code="not-taken", text="quota")))
    assert story.wait(1).status().reason is not None
    story.end("0-worker-0-0", USER_FAILURE).wait(1000).place()
    assert story.runs()[-1].pod == "j1-0-worker-0-1"
    assert story.wait(1).status().task_roles[0].tasks[0].attempt == 1
    assert story.status().task_roles[0].tasks[0].reason is None


def test_a_task_shows_its_pods_own_address_and_its_next_attempt_the_nodes(
    new_story: NewStory,
) -> None:
    story, pod = new_story(gang=False, role={"task_retry_count": 1}).place(), "j1-0-worker-0-0"
    started = story.agents.start(pod, story.now).model_copy(update={"address": "10.244.0.7"})
    story.receive(started).wait(1)
    assert story.status().task_roles[0].tasks[0].address == "10.244.0.7"
    story.end("0-worker-0-0", USER_FAILURE).wait(1000).place().wait(1)
    assert story.status().task_roles[0].tasks[0].attempt == 1
    assert story.status().task_roles[0].tasks[0].address == "127.0.0.1"


def test_a_new_jobs_wait_is_published_with_the_first_reason(new_story: NewStory) -> None:
    story = new_story().wait(1)
    assert not any(s.kind is Kind.JOB for s in story.published)
    story.receive(story.scheduler.defer("j1-0", "No room.")).wait(0.4)
    assert story.status().reason is not None
    assert sum(s.kind is Kind.JOB for s in story.wait(10).published) == 1
    alone = new_story().wait(2)
    assert alone.status().state is JobState.WAITING


def test_the_status_has_the_gangs_class_until_its_attempt_ends(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start()
    seen = []
    for gang_class in (GangClass.GUARANTEED, GangClass.DOWNGRADED, GangClass.GUARANTEED):
        message = story.scheduler.place("j1-0", "n1")
        story.receive(message.model_copy(update={"gang_class": gang_class})).wait(1)
        seen.append(story.status().gang_class)
    assert seen == [GangClass.GUARANTEED, GangClass.DOWNGRADED, GangClass.GUARANTEED]
    assert len(story.runs()) == 2
    assert story.preempt().end_stopped().again().status().gang_class is None


def test_the_status_has_the_lender_while_the_gang_borrows(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}).place().start()
    seen = []
    for lender in ("speech", None, "vision"):
        message = story.scheduler.place("j1-0", "n1")
        change = {"gang_class": GangClass.GUARANTEED, "lender": lender}
        story.receive(message.model_copy(update=change)).wait(1)
        seen.append(story.status().lender)
    assert seen == ["speech", None, "vision"]
    assert story.preempt().end_stopped().again().status().lender is None


def test_details_are_published_together(new_story: NewStory) -> None:
    story = new_story({"worker": 20}).place().start()
    assert sum(s.kind is Kind.JOB for s in story.published) == 1
    story.wait(1)
    assert sum(s.kind is Kind.JOB for s in story.published) == 2
    assert {t.state for t in story.status().task_roles[0].tasks} == {TaskState.RUNNING}


def test_a_gang_lets_go_of_what_has_ended_while_the_rest_runs(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    gang = story.scheduler.gangs["j1-0"]
    assert [p.pod for p in gang.pods] == ["j1-0-worker-1-0"]
    assert [r.pod for r in gang.released] == ["j1-0-worker-0-0"]
    assert story.phase() is JobPhase.RUNNING


# Odd messages.


def test_a_final_job_moves_no_more(new_story: NewStory) -> None:
    story = new_story().place().start().end("0-worker-0-0")
    before, published = story.job, len(story.published)
    story.stop().receive(story.request).wait(10_000)
    story.receive(story.scheduler.decisions["j1-0"])
    story.receive(MessageRejected(Kind.GANG, "j1-0"))
    assert story.job == before
    assert len(story.published) == published
    assert wake_at(story.job) is None


def test_messages_about_unknown_jobs_are_answered_as_over() -> None:
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
    assert [s.message.action for s in answer.messages] == [PodAction.STOP]  # type: ignore[attr-defined]
    ended = pod.model_copy(update={"state": PodState.FAILED})
    answer = decide("gone", None, ended, **now)  # type: ignore[arg-type]
    assert [s.message.action for s in answer.messages] == [PodAction.FORGET]  # type: ignore[attr-defined]


def test_numbers_that_a_restored_backup_has_forgotten_are_not_given_again(
    new_story: NewStory,
) -> None:
    story = new_story()
    ask = story.scheduler.gangs["j1-0"].model_copy(update={"gang": "j1-4", "revision": 0})
    story.scheduler.gangs["j1-4"] = ask
    story.receive(story.scheduler._decide("j1-4", []))
    assert story.scheduler.gangs["j1-4"].pods == ()
    story.place().end("0-worker-0-0", WITHDRAWN).wait(1)
    assert story.job.job.attempt == 5


def test_a_job_that_a_restored_backup_may_have_forgotten_begins_with_a_number_above(
    make_request: MakeRequest,
) -> None:
    begun = decide("j1", None, make_request("j1"), now=START, policy=POLICY, unused_number=40)
    assert begun.state is not None
    assert begun.state.job.newest_attempt == 40
    assert {each.subject for each in begun.messages} == {"j1-40"}


RESYNC_S = POLICY.resync.total_seconds()


def test_a_pod_that_may_have_run_before_a_restore_gets_a_new_name_with_its_place(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2})
    story.unused_number = 40
    story.wait(100).place().wait(RESYNC_S - 1)
    assert story.runs() == []
    assert story.scheduler.gangs["j1-0"].pods != ()
    story.wait(1)
    assert story.scheduler.gangs["j1-0"].pods == ()
    story.place().start().end("40-worker-0-0").end("40-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().retries == Retries(platform=1)
    assert story.scheduler.gangs.keys() == {"j1-0", "j1-40"}


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_gang_of_which_a_restore_knows_a_part_ends_and_is_tried_again(
    new_story: NewStory, has_ended: bool
) -> None:
    story = new_story({"worker": 2}, time_limit_s=100)
    forgotten = story.job
    story.place().start()
    story.job_with_tasks, story.unused_number = forgotten, 40
    if has_ended:
        story.end("0-worker-1-0")
    else:
        story.receive(story.agents.statuses["j1-0-worker-1-0"])
    story.wait(RESYNC_S)
    assert story.agents.stopping == (set() if has_ended else {"j1-0-worker-1-0"})
    story.end_stopped().wait(1).place()
    assert [run.pod for run in story.runs()[2:]] == ["j1-40-worker-0-0", "j1-40-worker-1-0"]


def test_a_gang_of_which_all_agents_tell_after_a_restore_goes_on(new_story: NewStory) -> None:
    story = new_story({"worker": 2})
    forgotten = story.job
    story.place().start()
    story.job_with_tasks, story.unused_number = forgotten, 40
    story.receive(story.scheduler.decisions["j1-0"]).wait(RESYNC_S - 1)
    for status in list(story.agents.statuses.values()):
        story.receive(status)
    story.wait(100).end("0-worker-0-0").end("0-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED
    assert story.status().retries == Retries()


def test_a_pod_that_has_run_elsewhere_than_it_was_placed_since_ends(new_story: NewStory) -> None:
    story = new_story()
    forgotten = story.job
    story.place().start()
    status = story.agents.statuses["j1-0-worker-0-0"]
    story.job_with_tasks, story.unused_number = forgotten, 40
    story.receive(story.scheduler.decisions["j1-0"])
    story.receive(status.model_copy(update={"node": "n2", "journal": "journal-of-n2"}))
    assert story.stops()["j1-0-worker-0-0"].node == "n2"
    story.wait(1).place()
    assert [run.pod for run in story.runs()[1:]] == ["j1-40-worker-0-0"]


def test_an_elastic_gang_goes_on_when_what_it_can_do_without_is_forgotten(
    new_story: NewStory,
) -> None:
    story = new_story({"worker": 2}, role={"min_instances": 1})
    story.receive(story.scheduler.place("j1-0", "n1", 1)).start()
    story.unused_number = 40
    story.wait(100)
    assert story.status().task_roles[0].tasks[1].pod == "j1-0-worker-1-0"
    story.place().wait(RESYNC_S).place().start()
    assert story.agents.live() == ["j1-0-worker-0-0", "j1-0-worker-1-40"]
    assert story.phase() is JobPhase.RUNNING


def test_a_task_that_starts_singly_gets_a_new_name_alone(new_story: NewStory) -> None:
    story = new_story({"worker": 2}, gang=False)
    story.receive(story.scheduler.place("j1-0-worker-1-0", "n1")).start()
    story.unused_number = 40
    story.end("0-worker-1-0", WITHDRAWN).wait(2)
    story.receive(story.scheduler.place("j1-0-worker-1-40", "n1")).start()
    assert story.agents.live() == ["j1-0-worker-1-40"]
    story.place().wait(RESYNC_S).place().start()
    assert sorted(story.agents.live()) == ["j1-0-worker-0-40", "j1-0-worker-1-40"]
    tasks = story.status().task_roles[0].tasks
    assert [(task.retries, task.accountable_retries) for task in tasks] == [(1, 0), (1, 0)]
    story.end("0-worker-0-40", WITHDRAWN).wait(2).place().start()
    assert sorted(story.agents.live()) == ["j1-0-worker-0-41", "j1-0-worker-1-40"]


def test_a_place_that_was_not_used_is_used_when_nothing_may_have_been_forgotten(
    new_story: NewStory,
) -> None:
    story = new_story()
    story.unused_number = 40
    story.place()
    story.unused_number = 0  # of a replica that takes the timer
    story.wait(RESYNC_S)
    assert [run.pod for run in story.runs()] == ["j1-0-worker-0-0"]


def test_how_many_attempts_there_were_is_no_number_of_an_attempt(new_story: NewStory) -> None:
    story = new_story().place().start()
    story.unused_number = 40
    story.end("0-worker-0-0", WITHDRAWN).wait(1).place().start()
    story.end("40-worker-0-0", WITHDRAWN)
    reason = story.status().reason
    assert reason is not None
    assert reason.numbers == {"attempts": 2}


def test_what_runs_at_a_restore_goes_on_and_its_next_attempt_has_a_new_name(
    new_story: NewStory,
) -> None:
    story = new_story().place().start()
    story.unused_number = 40
    story.receive(Due()).end("0-worker-0-0", WITHDRAWN).wait(1).place().start()
    story.end("40-worker-0-0", WITHDRAWN).wait(2).place().start()
    assert [run.pod for run in story.runs()] == [f"j1-{n}-worker-0-0" for n in (0, 40, 41)]


def test_a_pod_whose_start_a_restored_backup_has_forgotten_goes_on(new_story: NewStory) -> None:
    story = new_story({"worker": 2})
    forgotten = story.job
    story.place().start()
    story.job_with_tasks = forgotten
    for status in list(story.agents.statuses.values()):
        story.receive(status)
    assert story.phase() is JobPhase.RUNNING
    assert {t.phase for t in story.job.tasks.values()} == {TaskPhase.RUNNING}
    story.end("0-worker-0-0").end("0-worker-1-0")
    assert story.status().state is JobState.SUCCEEDED


STOPPED_BY_USER = failure(Behavior.PERMANENT, Fault.STOP, -210)
STOPPED_AS_COMPLETE = failure(Behavior.PERMANENT, Fault.STOP, -220)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        pytest.param([STOPPED_BY_USER, STOPPED_BY_USER], JobState.STOPPED, id="by the user"),
        pytest.param([STOPPED_AS_COMPLETE, USER_FAILURE], JobState.FAILED, id="a pod failed"),
        pytest.param([STOPPED_AS_COMPLETE, None], JobState.SUCCEEDED, id="a pod succeeded"),
        pytest.param([STOPPED_AS_COMPLETE] * 2, JobState.FAILED, id="the time was over"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("is_placed", [True, False])
def test_a_stop_that_a_restored_backup_has_forgotten_is_known_from_its_pods_end(
    new_story: NewStory, ends: list[Verdict | None], wanted: JobState, order: int, is_placed: bool
) -> None:
    story = new_story({"worker": 2}, role={"min_failed_instances": 1, "min_succeeded_instances": 1})
    forgotten = story.job
    story.place().start()
    if is_placed:
        forgotten = story.job
    verdicts = dict(zip(("0-worker-0-0", "0-worker-1-0"), ends, strict=True))
    for pod, verdict in verdicts.items():
        story.agents.end(f"j1-{pod}", story.now, verdict)
    story.job_with_tasks = forgotten
    for status in list(story.agents.statuses.values())[::order]:
        story.receive(status)
    assert story.status().state is wanted
    assert not any(each.startswith("j1-0-worker") for each in story.open_subjects())


def test_an_end_shows_that_the_pod_ran_without_another_message(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place()
    story.now += timedelta(seconds=5)
    for pod in story.agents.live():
        story.agents.start(pod, story.now)
    story.end("0-worker-0-0", USER_FAILURE)
    assert story.status().launched_at == story.now
    assert story.status().task_roles[0].tasks[0].launched_at == story.now


def test_a_late_message_about_an_earlier_pod_of_a_task_leaves_the_present_one_alone(
    new_story: NewStory,
) -> None:
    story = new_story(role={"task_retry_count": 1}, gang=False).place().start()
    story.end("0-worker-0-0", USER_FAILURE).place().start()
    before = story.job.tasks
    late = story.agents.statuses["j1-0-worker-0-0"].model_copy(update={"revision": 99})
    story.receive(late)
    assert story.job.tasks == before
    assert story.published[-1].message.action is PodAction.FORGET


def test_a_pod_of_an_attempt_that_is_forgotten_is_stopped_and_its_number_is_used(
    new_story: NewStory,
) -> None:
    story = new_story().place()
    status = story.agents.statuses["j1-0-worker-0-0"]
    story.receive(status.model_copy(update={"pod": "j1-3-worker-0-0", "gang": "j1-3"}))
    assert story.stops().keys() == {"j1-3-worker-0-0"}
    story.end("0-worker-0-0", WITHDRAWN).wait(1)
    assert story.job.job.attempt == 4


def test_a_pod_that_only_its_agent_remembers_to_have_accepted_goes_on(new_story: NewStory) -> None:
    story = new_story({"worker": 2})
    forgotten = story.job
    story.place()
    story.job_with_tasks = forgotten
    for status in list(story.agents.statuses.values()):
        story.receive(status)
    assert {t.phase for t in story.job.tasks.values()} == {TaskPhase.PLACED}
    story.stop().end_stopped()
    assert story.status().state is JobState.STOPPED


def test_a_pod_that_nobody_asked_for_is_passed_over(new_story: NewStory) -> None:
    story = new_story()
    decision = story.scheduler.place("j1-0", "n1")
    unknown = decision.pods[0].model_copy(update={"pod": "j1-0-worker-7-0"})
    story.receive(decision.model_copy(update={"pods": (unknown, *decision.pods)}))
    assert [r.pod for r in story.runs()] == ["j1-0-worker-0-0"]


def test_a_released_pod_is_published_once(new_story: NewStory) -> None:
    story = new_story({"worker": 2}).place().start().end("0-worker-0-0").wait(1)
    published = len(story.published)
    story.wait(100)
    assert len(story.published) == published
    assert wake_at(story.job) is None


def test_a_dead_letter_shows_on_the_job_until_the_next_message(new_story: NewStory) -> None:
    story = new_story().receive(MessageRejected(Kind.GANG, "j1-0"))
    assert "gang j1-0" in (story.status().dead_letter or "")
    assert story.place().wait(1).status().dead_letter is None
    story.receive(MessageRejected(Kind.POD, "j1-0-worker-0-0"))
    assert "pod j1-0-worker-0-0" in (story.status().dead_letter or "")
    assert story.start().status().dead_letter is None


def test_a_dead_letter_of_one_attempt_is_not_shown_on_the_next(new_story: NewStory) -> None:
    story = new_story().place()
    story.receive(MessageRejected(Kind.POD, "j1-0-worker-0-0"))
    assert story.status().dead_letter is not None
    story.lose("n1").wait(60)
    assert (story.job.job.attempt, story.status().dead_letter) == (1, None)


def test_a_job_without_tasks_is_a_dead_letter(
    make_request: MakeRequest, story_of: Callable[[JobRequest], Story]
) -> None:
    with pytest.raises(Broken):
        story_of(make_request("j1").model_copy(update={"spec": None}))


def test_a_start_from_before_ended_jobs_were_forgotten_is_rejected(
    make_request: MakeRequest,
) -> None:
    days = POLICY.start_longest
    request = make_request("j1")
    new = decide("j1", None, request, now=request.submitted_at + days, policy=POLICY)
    assert new.state is not None
    late = request.submitted_at + days + timedelta(seconds=1)
    with pytest.raises(Broken, match="longer ago"):
        decide("j1", None, request, now=late, policy=POLICY)


def test_the_end_of_a_gang_that_nobody_knows_is_not_answered() -> None:
    """Else the answer would be answered with the end, and so on for ever."""
    message = GangDecision(gang="gone-0", job="gone", epoch=1)
    assert decide("gone", None, message, now=START, policy=POLICY).messages == ()


def test_a_gang_that_only_its_scheduler_holds_is_ended(new_story: NewStory) -> None:
    """As where the Scheduler came back from a backup that is older than what is kept."""
    story = new_story(job_retry_count=1).place().start()
    old = story.scheduler.decisions["j1-0"]
    story.end("0-worker-0-0", USER_FAILURE).again().place().start()
    for _ in range(2):
        story.published.clear()
        story.receive(old.model_copy(update={"revision": 99}))
        assert [(s.subject, s.message.pods) for s in story.published] == [("j1-0", ())]
    before = story.job
    story.end("1-worker-0-0").published.clear()
    story.receive(story.scheduler.decisions["j1-0"])
    assert story.published == []
    assert before.job.attempt == 1


def test_a_clock_that_jumps_fires_no_timer_early_and_doubles_nothing(new_story: NewStory) -> None:
    story = new_story(time_limit_s=7200, role={"min_failed_instances": 1}).place().start()
    story.now -= timedelta(hours=1)
    story.wait(0).end("0-worker-0-0", WITHDRAWN)
    assert story.phase() is JobPhase.BACKOFF
    retry_at = story.status().retry_at
    assert retry_at is not None
    assert retry_at - story.now == timedelta(seconds=1), "the wait counts on the clock as it is"
    story.now -= timedelta(hours=1)
    story.receive(Due())
    assert story.phase() is JobPhase.BACKOFF, "a timer rang an hour early"
    story.now = retry_at + timedelta(hours=1)
    story.receive(Due()).receive(Due())
    story.now -= timedelta(hours=1)
    story.receive(Due())
    assert story.job.job.attempt == 1
    assert [message.pod for message in story.place().runs()] == [
        "j1-0-worker-0-0",
        "j1-1-worker-0-0",
    ]
    story.start().now += timedelta(seconds=7199)
    story.receive(Due())
    assert story.phase() is JobPhase.RUNNING
    assert story.end("1-worker-0-0").status().state is JobState.SUCCEEDED
