"""Elastic gangs as the Launcher sees them: some pods start later, and are asked back alone."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest, PodAsk
from muster.service import Runtime
from scheduler.domain.messages import message_of
from scheduler.domain.state import State

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]


def pods(kit: Kit, name: str, least: int, most: int, **wants: Any) -> tuple[PodAsk, ...]:
    """Of which the gang can do without those after the least."""
    asked = kit.pods(name, most, gpus=2, **wants)
    return tuple(
        ask.model_copy(update={"surplus": number >= least}) for number, ask in enumerate(asked)
    )


def elastic(kit: Kit, least: int, most: int, **more: Any) -> GangRequest:
    message: GangRequest = kit.gang("e", *pods(kit, "e", least, most), **more)
    return message


def states(state: State, gang: str = "e") -> list[str]:
    return [pod.state.value for pod in message_of(state, state.gangs[gang], 1).pods]


def ask(kit: Kit, state: State, message: GangRequest, now: float) -> None:
    state.request(message, now, now)
    kit.decide(state, now)


def test_it_starts_without_what_has_no_place_and_gets_it_later(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=6))
    ask(kit, state, kit.gang("a", *kit.pods("a", 1, gpus=2)), 0.0)
    ask(kit, state, elastic(kit, 1, 4), 1.0)
    message = message_of(state, state.gangs["e"], 1)
    assert states(state) == ["placed", "placed", "waiting", "waiting"]
    assert (message.reason, message.preemption) == (None, None)
    ask(kit, state, kit.gang("a"), 2.0)
    state.report(kit.report("n0", gpus=6, revision=2), 3.0)
    kit.decide(state, 3.0)
    assert states(state) == ["placed", "placed", "placed", "waiting"]


def test_nothing_starts_without_what_it_needs(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2))
    ask(kit, state, elastic(kit, 1, 2), 0.0)
    assert states(state) == ["placed", "waiting"]
    ask(kit, state, kit.gang("f", *pods(kit, "f", 2, 3)), 1.0)
    assert states(state, "f") == ["refused"] * 3


def shrunk(kit: Kit) -> State:
    """Three pods of an elastic gang have places, of which one is asked back."""
    state: State = kit.state(kit.report("n0", gpus=6))
    ask(kit, state, elastic(kit, 1, 3), 0.0)
    assert states(state) == ["placed"] * 3
    ask(kit, state, kit.gang("b", *kit.pods("b", 1, gpus=2)), 1.0)
    return state


def test_what_it_can_do_without_is_asked_back_alone(kit: Kit) -> None:
    state = shrunk(kit)
    message = message_of(state, state.gangs["e"], 1)
    assert sorted(states(state)) == ["placed", "placed", "preempted"]
    assert states(state)[0] == "placed"
    assert message.preemption is not None
    assert (message.preemption.gang, message.preemption.reason.code) == ("b", "surplus")


def given_back(kit: Kit, state: State, again: str) -> None:
    """The pod has ended, and is wanted again under another name."""
    asked = elastic(kit, 1, 3)
    kept = [a for a, s in zip(asked.pods, states(state), strict=True) if s != "preempted"]
    more = kept[1].model_copy(update={"pod": again})
    ask(kit, state, asked.model_copy(update={"pods": (*kept, more)}), 2.0)
    left = {pod: hold.placement.gpus for pod in state.ledger.pods if (hold := hold_of(state, pod))}
    state.report(kit.report("n0", gpus=6, revision=2, holding=left), 3.0)
    kit.decide(state, 3.0)


def hold_of(state: State, pod: str) -> Any:
    hold = state.ledger.hold_of(pod)
    return hold if hold is not None and hold.is_wanted else None


def test_once_it_is_given_back_nothing_is_asked_back_and_it_grows_again(kit: Kit) -> None:
    state = shrunk(kit)
    given_back(kit, state, "e-w-1-again")
    message = message_of(state, state.gangs["e"], 1)
    assert (states(state), message.preemption) == (["placed", "placed", "waiting"], None)
    assert states(state, "b") == ["placed"]
    ask(kit, state, kit.gang("b"), 4.0)
    held = {pod: hold.placement.gpus for pod in state.ledger.pods if (hold := hold_of(state, pod))}
    state.report(kit.report("n0", gpus=6, revision=3, holding=held), 5.0)
    kit.decide(state, 5.0)
    assert states(state) == ["placed"] * 3


def test_with_its_node_lost_nothing_is_asked_back_of_the_others(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=2), kit.report("n1", gpus=2))
    ask(kit, state, elastic(kit, 1, 2), 0.0)
    ask(kit, state, kit.gang("b", *kit.pods("b", 1, gpus=2)), 1.0)
    assert states(state) == ["placed", "preempted"]
    hold = state.ledger.hold_of("e-w-1")
    assert hold is not None
    state.lose(hold.placement.node, 2.0)
    assert states(state) == ["placed", "lost"]
    assert message_of(state, state.gangs["e"], 1).preemption is None


def test_a_gang_that_is_killed_gives_all_back(kit: Kit) -> None:
    state = kit.state(kit.report("n0", gpus=4))
    ask(kit, state, elastic(kit, 1, 2, priority=0), 0.0)
    ask(kit, state, kit.gang("b", *kit.pods("b", 1, gpus=2), priority=5), 1.0)
    assert states(state) == ["placed", "preempted"]
    ask(kit, state, kit.gang("c", *kit.pods("c", 1, gpus=2), priority=5), 700.0)
    assert states(state) == ["preempted", "preempted"]


def test_what_is_left_of_it_without_what_it_needs_waits_for_nothing(kit: Kit) -> None:
    """The Launcher is about to end it."""
    state = kit.state(kit.report("n0", gpus=2))
    ask(kit, state, elastic(kit, 1, 2), 0.0)
    asked = elastic(kit, 1, 2)
    ask(kit, state, asked.model_copy(update={"pods": asked.pods[1:]}), 1.0)
    state.report(kit.report("n0", gpus=2, revision=2), 2.0)
    kit.decide(state, 2.0)
    assert states(state) == ["waiting"]
    ask(kit, state, kit.gang("e"), 3.0)
    assert not state.gangs


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_restart_knows_what_a_gang_can_do_without(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    """What is asked back stays so; what waits is placed when there is room."""
    asked = elastic(kit, 1, 3)
    async with scheduler():
        await others.report(kit.report("n0", gpus=6))
        await others.ask(asked)
        await others.until(lambda: others.states("e") == ["placed"] * 3)
        await others.ask(kit.gang("b", *kit.pods("b", 1, gpus=2)))
        await others.until(lambda: "preempted" in others.states("e"))
        assert ("gang-preempted", "e") in others.topics
    leaving = others.states("e").index("preempted")
    async with scheduler() as runtime:
        await others.ask(kit.gang("c", *kit.pods("c", 1, gpus=2), age=1))
        await others.until(lambda: others.states("e").count("preempted") == 2)
        assert others.states("e")[0] == "placed"
        assert others.decisions["e"].preemption.reason.code == "surplus"
        kept = [asked.pods[0], asked.pods[3 - leaving]]
        again = asked.pods[leaving].model_copy(update={"pod": "e-w-again"})
        await others.ask(asked.model_copy(update={"pods": (*kept, again)}))
        await others.report(_report(kit, others, revision=2, without="b"))
        await others.until(lambda: others.states("b") == ["placed"])
        rows = await runtime.pool.fetch("SELECT elastic_pods::text FROM gang WHERE gang = 'e'")
        assert [[pod[0] for pod in json.loads(row["elastic_pods"])] for row in rows] == [
            [kept[1].pod]
        ]
    async with scheduler():
        await others.ask(asked.model_copy(update={"pods": (*kept[:1], again)}))
        await others.report(_report(kit, others, revision=3, without="c"))
        await others.until(lambda: others.states("c") == ["placed"])
        await others.ask(kit.gang("b"))
        await others.report(_report(kit, others, revision=4, without="b"))
        await others.until(lambda: others.states("e") == ["placed", "placed"])


def _report(kit: Kit, others: Others, revision: int, without: str) -> Any:
    """The node runs all that has a place, but this gang's pods."""
    placed = {
        pod.pod: pod.gpus
        for gang, message in others.messages.items()
        if gang != without
        for ask in message.pods
        for pod in others.decisions[gang].pods
        if pod.pod == ask.pod and pod.node
    }
    return kit.report("n0", gpus=6, revision=revision, holding=placed)
