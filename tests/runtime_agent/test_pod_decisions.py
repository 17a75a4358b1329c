"""What the agent decides about pods: its rules as properties over any order of events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from muster.contracts.pods import PodAction, PodRequest, PodRun, PodState, PodStop, RoleShape
from runtime_agent.domain import pods as decide
from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Decision, Launch, Phase, Pod, Stop, Surroundings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHAPE = RoleShape(
    name="w", instances=1, gpus=1, cpu=1, memory_mb=1, min_failed_instances=1,
    min_succeeded_instances=-1,
)  # fmt: skip
AROUND = Surroundings(node="n", journal="j", boot="b", gpus=frozenset(range(4)), next_report=7)


def a_request(
    pod: str = "p", action: PodAction = PodAction.RUN, journal: str = "j", **run: Any
) -> PodRequest:
    return PodRequest(
        pod=pod, job="job", gang="job-0", node="n", journal=journal, action=action,
        run=PodRun(
            user="u", user_number=1, job_name="u~j", virtual_cluster="default", role="w", index=0,
            job_attempt=0, task_attempt=0, command="true", cpu=1, memory_mb=1, roles=(SHAPE,),
            peers=(), **run,
        ),
        stop=PodStop(reason="stopped", grace_s=3.0) if action is PodAction.STOP else None,
    )  # fmt: skip


def rule_of(decision: Decision) -> str:
    assert decision.message is not None
    assert decision.message.verdict is not None
    return decision.message.verdict.rule


def test_an_accepted_pod_is_launched_and_nothing_is_published_before_it_runs() -> None:
    decision = decide.requested(None, a_request(gpus=(0,)), AROUND)
    assert (decision.pod.phase, decision.message, decision.effects) == (
        Phase.ACCEPTED, None, (Launch(decision.pod),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "around", "rule"),
    [
        (a_request(journal="other"), AROUND, "agent-reset"),
        (a_request(journal="other", action=PodAction.STOP), AROUND, "agent-reset"),
        (a_request(journal="other", action=PodAction.FORGET), AROUND, "agent-reset"),
        (a_request(gpus=(4,)), AROUND, "bad-request"),
        (a_request(gpus=(1,)), replace(AROUND, held_gpus={1: "other"}), "device-busy"),
        (a_request(ports={"a": (5,)}), replace(AROUND, held_ports={5: "other"}), "device-busy"),
        (
            a_request(ports={"a": (5, 6)}),
            replace(AROUND, foreign_ports=frozenset({6})),
            "port-conflict",
        ),
        (a_request(), replace(AROUND, is_stopping=True), "withdrawn"),
        (a_request(action=PodAction.STOP), AROUND, "never-ran"),
        (a_request(action=PodAction.FORGET), AROUND, "never-ran"),
    ],
)
def test_what_is_not_carried_out_is_answered_as_failed(
    request_: PodRequest, around: Surroundings, rule: str
) -> None:
    decision = decide.requested(None, request_, around)
    assert (decision.pod.phase, decision.effects) == (Phase.ENDED, ())
    assert rule_of(decision) == rule
    assert decision.message is not None
    assert decision.message.report_revision == 7


def test_a_live_pod_that_is_forgotten_is_stopped() -> None:
    pod = decide.requested(None, a_request(), AROUND).pod
    decision = decide.requested(pod, a_request(action=PodAction.FORGET), AROUND)
    assert decision.effects == (Stop("p", decide.Stopping("forgotten", 30.0)),)


@pytest.mark.parametrize("action", list(PodAction))
def test_a_live_pod_is_untouched_by_what_names_another_journal(action: PodAction) -> None:
    pod = decide.requested(None, a_request(), AROUND).pod
    decision = decide.requested(pod, a_request(action=action, journal="other"), AROUND)
    assert decision == Decision(pod)


def test_a_second_stop_can_only_shorten_the_grace_and_keeps_the_first_reason() -> None:
    pod = decide.requested(None, a_request(), AROUND).pod
    pod = decide.requested(pod, a_request(action=PodAction.STOP), AROUND).pod
    decision = decide.withdrawn(pod, 60.0)
    assert decision.pod.stop == decide.Stopping("stopped", 3.0)


def test_an_ended_pod_keeps_nothing_of_what_it_ran() -> None:
    """Names are kept for days, and what a pod of a large gang runs names every peer."""
    pod = decide.requested(None, a_request(), AROUND).pod
    assert decide.ended(pod, Ending(exit_code=0), NOW, NOW, AROUND).pod.run is None
    assert decide.requested(None, a_request(journal="other"), AROUND).pod.run is None


class OneNode(RuleBasedStateMachine):
    """Requests and looks in any order, also for the same pods again and again."""

    names = st.sampled_from([f"p{n}" for n in range(5)])
    gpus = st.lists(st.integers(0, 3), max_size=3, unique=True).map(tuple)

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Pod] = {}
        self.launched: list[str] = []
        self.finals: dict[str, PodState] = {}

    def around(self) -> Surroundings:
        held = {
            gpu: pod.pod
            for pod in self.pods.values()
            if pod.phase is not Phase.ENDED and pod.run is not None
            for gpu in pod.run.gpus
        }
        return replace(AROUND, held_gpus=held)

    def apply(self, decision: Decision) -> None:
        before = self.pods.get(decision.pod.pod)
        if before is not None and before.phase is Phase.ENDED:
            assert decision.pod.phase is Phase.ENDED, "final states never move"
            assert decision.message is None, "the end is published once"
        self.pods[decision.pod.pod] = decision.pod
        self.launched += [e.pod.pod for e in decision.effects if isinstance(e, Launch)]
        if decision.message is not None and decision.pod.phase is Phase.ENDED:
            assert decision.pod.pod not in self.finals
            self.finals[decision.pod.pod] = decision.message.state

    @rule(name=names, action=st.sampled_from(list(PodAction)), gpus=gpus,
          journal=st.sampled_from(["j", "j", "other"]))  # fmt: skip
    def ask(self, name: str, action: PodAction, gpus: tuple[int, ...], journal: str) -> None:
        request = a_request(name, action, journal, gpus=gpus)
        self.apply(decide.requested(self.pods.get(name), request, self.around()))

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), code=st.integers(0, 2))
    def end(self, data: st.DataObject, code: int) -> None:
        pod = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        self.apply(decide.ended(pod, Ending(exit_code=code), NOW, NOW, self.around()))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        pod = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        self.apply(decide.started(pod, NOW, self.around()))

    @invariant()
    def no_gpu_has_two_live_pods(self) -> None:
        live = [p for p in self.pods.values() if p.phase is not Phase.ENDED and p.run is not None]
        held = [gpu for pod in live if pod.run is not None for gpu in pod.run.gpus]
        assert len(held) == len(set(held))

    @invariant()
    def each_name_is_launched_at_most_once(self) -> None:
        assert len(self.launched) == len(set(self.launched))

    @invariant()
    def every_ended_pod_has_published_its_end(self) -> None:
        ended = {name for name, pod in self.pods.items() if pod.phase is Phase.ENDED}
        assert ended == self.finals.keys()


TestOneNode = OneNode.TestCase
TestOneNode.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
