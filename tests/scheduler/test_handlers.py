"""Which of the Launcher's words are recorded."""

from datetime import UTC
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from launcher.domain.decide import decide
from launcher.domain.model import Policy as LauncherPolicy
from muster.contracts.gangs import GangDecision, GangRequest, PodAsk, PodRelease
from muster.contracts.jobs import Execution, JobRequest, JobSpec, TaskRoleSpec
from muster.contracts.topics import Kind
from muster.decisions import Due, MessageRejected
from muster.errors import Broken
from scheduler.handlers import Ended, record

Kit = Any


def test_the_newest_word_is_recorded_as_it_is(kit: Kit) -> None:
    message = kit.gang("j-0", *kit.pods("j-0", 2, gpus=1))
    assert record("j-0", None, message, kit.start).state == message


def test_a_pod_that_may_start_singly_is_a_gang_of_its_own_name(kit: Kit) -> None:
    """Said by the Launcher's own core, for a job whose tasks may start singly."""
    roles = (TaskRoleSpec(name="w", instances=2, cpu=1, memory_mb=1, gpus=1, command="true"),)
    request = JobRequest(
        job="j",
        name="n",
        user="u",
        execution=Execution.START,
        submitted_at=kit.start,
        spec=JobSpec(gang=False, task_roles=roles),
    )
    state = kit.state(kit.report("n0", gpus=2))
    for say in decide("j", None, request, now=kit.start, policy=LauncherPolicy()).messages:
        assert record(say.subject, None, say.message, kit.start).state == say.message
        assert isinstance(say.message, GangRequest)
        state.request(say.message, 0.0, 0.0)
    assert {d.gang for d in kit.decide(state, 0.0)} == {"j-0-w-0-0", "j-0-w-1-0"}


@pytest.mark.parametrize(
    "pods",
    [
        (PodAsk(pod="j-0-w-0-0", role="w"), PodAsk(pod="j-0-w-0-0", role="w")),
        (PodAsk(pod="other-0-w-0-0", role="w"),),
        (PodAsk(pod="j-0-w-0-0", role="w", gpus=-1),),
        (PodAsk(pod="j-0-w-0-0", role="w", ports={"http": -1}),),
    ],
    ids=["a pod twice", "another gang's pod", "negative GPUs", "negative ports"],
)
def test_a_word_that_makes_no_sense_is_a_dead_letter(kit: Kit, pods: tuple[PodAsk, ...]) -> None:
    with pytest.raises(Broken):
        record("j-0", None, kit.gang("j-0", *pods), kit.start)


def test_a_word_without_a_time_zone_is_a_dead_letter(kit: Kit) -> None:
    message = kit.gang("j-0", *kit.pods("j-0", 1))
    naive = message.model_copy(update={"submitted_at": kit.start.replace(tzinfo=None)})
    with pytest.raises(Broken):
        record("j-0", None, naive, kit.start)


def test_a_gang_that_has_ended_is_answered_and_not_recorded(kit: Kit) -> None:
    message = kit.gang("j-0", *kit.pods("j-0", 2, gpus=1))
    decision = record("j-0", Ended(7), message, kit.start)
    assert decision.state is None
    (publish,) = decision.messages
    assert (publish.topic, publish.subject, publish.is_open) == ("placement-decided", "j-0", False)
    answer = publish.message
    assert isinstance(answer, GangDecision)
    assert (answer.gang, answer.job, answer.epoch) == ("j-0", "j-0", 7)
    assert {pod.pod: pod.state.value for pod in answer.pods} == dict.fromkeys(
        ("j-0-w-0", "j-0-w-1"), "lost"
    )
    assert answer.reason is not None
    assert "has ended" in answer.reason.text
    (again,) = record("j-0", Ended(7), kit.gang("j-0"), kit.start).messages
    assert again.message == GangDecision(gang="j-0", job="j-0", epoch=7)
    with pytest.raises(Broken):
        record("j-0", Ended(7), kit.gang("j-0", *kit.pods("other", 1)), kit.start)


NUMBERS = st.integers(-(2**70), 2**70) | st.integers(0, 9)
REVISIONS = st.integers(0, 2**62) | st.integers(0, 9)


@st.composite
def messages(draw: st.DrawFn) -> GangRequest:
    """Words as a Launcher with a bug, or of another version, might say them."""
    names = draw(st.lists(st.sampled_from(["j-0-a", "j-0-b", "j-0-c", "k"]), max_size=4))
    return GangRequest(
        gang="j-0",
        job="j",
        name=draw(st.text(max_size=3)),
        user="u",
        virtual_cluster="v",
        priority=draw(NUMBERS),
        submitted_at=draw(st.datetimes(timezones=st.none() | st.just(UTC))),
        pods=tuple(
            PodAsk(
                pod=name,
                role="w",
                gpus=draw(NUMBERS),
                cpu=draw(NUMBERS),
                memory_mb=draw(NUMBERS),
                ports=draw(st.dictionaries(st.text(max_size=2), NUMBERS, max_size=2)),
            )
            for name in names
        ),
        released=tuple(
            PodRelease(pod=name, journal="journal-of-n0", report_revision=draw(REVISIONS))
            for name in names[:2]
        ),
    )


@given(said=st.lists(messages(), min_size=1, max_size=4))
def test_whatever_word_is_recorded_can_be_decided(kit: Kit, said: list[GangRequest]) -> None:
    """Else one word would end the Scheduler, again and again."""
    state = kit.state(kit.report("n0", gpus=1))
    for number, message in enumerate((kit.gang("well", *kit.pods("well", 1, gpus=1)), *said)):
        try:
            record(message.gang, None, message, kit.start)
        except Broken:
            continue
        state.request(message, number, number)
        kit.decide(state, number)
        rows = state.take_changes().rows
        assert all(0 <= place.kind.cpu < 2**63 for place in rows.placed.values())
        holds = [hold for pod in rows.changed if (hold := state.ledger.hold_of(pod))]
        assert all(0 <= hold.free_from < 2**63 for hold in holds)


@pytest.mark.parametrize("received", [Due(), MessageRejected(Kind.GANG, "j-0")])
@pytest.mark.parametrize("state", [None, Ended(7)])
def test_nothing_else_changes_a_gang(kit: Kit, state: Any, received: Any) -> None:
    decision = record("j-0", state, received, kit.start)
    assert (decision.state, decision.messages) == (None, ())
