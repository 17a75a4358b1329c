"""Pods that run, and of which the store has lost the placement: adopted where they run, or waited
for; never placed elsewhere.
"""

from typing import Any

import pytest
from muster.contracts.gangs import GangRequest, PodRelease
from muster.contracts.node_orders import Order
from muster.contracts.nodes import Gpu, PodOnNode
from scheduler.domain.core.model import Deferred, Downgraded, Grown, Placed, Refused
from scheduler.domain.messages import message_of
from scheduler_answers import served

Kit = Any


def a_report(kit: Kit, node: str, *pods: PodOnNode, revision: int = 2, **more: Any) -> Any:
    """A node of four GPUs that runs these pods."""
    owner = {gpu: pod.pod for pod in pods for gpu in pod.gpus}
    gpus = tuple(
        Gpu(index=n, uuid=f"{node}-{n}", model="T", memory_mb=1, pod=owner.get(n)) for n in range(4)
    )
    return kit.report(node, gpus=gpus, revision=revision, pods=pods, **more)


def the_message(state: Any, gang: str) -> dict[str, tuple[str, str | None, tuple[int, ...]]]:
    """The Scheduler's message on a gang: each pod's state, node and GPUs."""
    pods = message_of(state, state.gangs[gang], 1).pods
    return {pod.pod: (pod.state.value, pod.node, pod.gpus) for pod in pods}


def adopted(state: Any) -> dict[str, tuple[str, ...]]:
    return dict(state.take_changes().adopted)


def waits(state: Any, gang: str) -> tuple[str, str]:
    """The code and the text of its reason, which its message has too."""
    reason = message_of(state, state.gangs[gang], 1).reason
    assert reason is not None
    assert reason == state.reason_of(gang)
    return reason.code, reason.text


def test_a_pod_that_runs_is_adopted_with_its_gpus_and_ports(kit: Kit) -> None:
    runs = PodOnNode(pod="g-w-0", gpus=(2, 3), ports=(20007, 20003, 20005))
    state = kit.state(a_report(kit, "n0"), a_report(kit, "n1", runs))
    (ask,) = kit.pods("g", 1, gpus=2, ports={"http": 1, "peer": 2})
    state.request(kit.gang("g", ask), 5.0, 5.0)
    assert kit.decide(state, 5.0) == []
    assert adopted(state) == {"g": ("g-w-0",)}
    message = message_of(state, state.gangs["g"], 1)
    assert message.gang_class is not None
    assert (message.gang_class.value, message.reason) == ("guaranteed", None)
    (pod,) = message.pods
    assert (pod.state.value, pod.node, pod.journal) == ("placed", "n1", "journal-of-n1")
    assert (pod.address, pod.gpus) == ("address-of-n1", (2, 3))
    assert pod.ports == {"http": (20003,), "peer": (20005, 20007)}  # lowest first, as was placed
    assert kit.free(state, 6.0) == 6


def test_it_is_charged_and_given_back_like_any_other(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0, 1, 2))))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=3)), 0.0, 0.0)
    state.request(kit.gang("h", *kit.pods("h", 1, gpus=2), age=1), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert the_message(state, "h") == {"h-w-0": ("waiting", None, ())}
    reason = state.reason_of("h")
    assert reason is not None
    assert reason.code == "quota"
    end = PodRelease(pod="g-w-0", journal="journal-of-n0", report_revision=3)
    state.request(kit.gang("g", released=(end,)), 1.0, 1.0)
    state.report(a_report(kit, "n0", revision=3), 1.0)
    assert [d.gang for d in kit.decide(state, 1.0) if isinstance(d, Placed)] == ["h"]


def test_who_has_no_quota_left_runs_on_downgraded(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0,))))
    message = kit.gang("g", *kit.pods("g", 1, gpus=1))
    state.request(message.model_copy(update={"virtual_cluster": "none"}), 0.0, 0.0)
    assert kit.decide(state, 0.0) == [Downgraded("g", None)]
    assert the_message(state, "g") == {"g-w-0": ("placed", "n0", (0,))}


def test_the_others_of_the_gang_join_those_that_run(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-1", gpus=(0, 1))))
    state.request(kit.gang("g", *kit.pods("g", 2, gpus=2)), 0.0, 0.0)
    (grown,) = kit.decide(state, 0.0)
    assert isinstance(grown, Grown)
    assert [(place.pod, place.gpus) for place in grown.pods] == [("g-w-0", (2, 3))]
    assert adopted(state) == {"g": ("g-w-1",)}
    assert state.core.exported("g").cells


def test_nodes_that_speak_one_after_the_other_have_their_pods_adopted_so(kit: Kit) -> None:
    pods = [PodOnNode(pod=f"g-w-{n}", gpus=(n, n + 1)) for n in range(2)]
    state = kit.state(a_report(kit, "n0", pods[0]))
    state.report(a_report(kit, "n1", pods[1]), 0.0)
    state.request(kit.gang("g", *kit.pods("g", 3, gpus=2)), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert adopted(state) == {"g": ("g-w-0",)}
    assert the_message(state, "g")["g-w-1"] == ("waiting", None, ())
    code, text = waits(state, "g")
    assert code == "still-running"
    assert "g-w-1" in text
    assert "n1" in text
    assert "no heartbeat from it" in text
    state.ledger.receive("n1", "", 1.0)
    (grown,) = kit.decide(state, 1.0)
    assert [place.pod for place in grown.pods] == ["g-w-2"]
    assert adopted(state) == {"g": ("g-w-1",)}
    assert {pod: node for pod, (_, node, _) in the_message(state, "g").items()} == {
        "g-w-0": "n0",
        "g-w-1": "n1",
        "g-w-2": grown.pods[0].node,
    }
    gang = state.core.gang("g")
    assert (gang.gang_class, gang.started_at) == ("guaranteed", 0.0)


OF_ANOTHER = PodOnNode(pod="other", gpus=(1,))


@pytest.mark.parametrize(
    ("runs", "beside", "why"),
    [
        (
            PodOnNode(pod="g-w-0", gpus=(1,), ports=(20000,)),
            (),
            "GPUs and ports that the gang requests",
        ),
        (
            PodOnNode(pod="g-w-0", gpus=(1, 1), ports=(20000,)),
            (),
            "GPUs and ports that the gang requests",
        ),
        (PodOnNode(pod="g-w-0", gpus=(1, 2)), (), "GPUs and ports that the gang requests"),
        (PodOnNode(pod="g-w-0"), (), "GPUs and ports that the gang requests"),
        (PodOnNode(pod="g-w-0", gpus=(1, 2), ports=(20000,)), (OF_ANOTHER,), "another pod has"),
        (
            PodOnNode(pod="g-w-0", gpus=(1, 2), ports=(20000,)),
            (PodOnNode(pod="other", ports=(20000,)),),
            "another pod has",
        ),
    ],
)
def test_who_cannot_be_adopted_waits_until_the_pod_is_gone(
    kit: Kit, runs: PodOnNode, beside: tuple[PodOnNode, ...], why: str
) -> None:
    """Though there is room elsewhere, where nobody knows that the pod runs."""
    state = kit.state(a_report(kit, "n0", runs, *beside), a_report(kit, "n1"))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=2, ports={"x": 1})), 0.0, 0.0)
    (told,) = kit.decide(state, 0.0)
    assert isinstance(told, Deferred)
    assert (told.gang, told.reason.code) == ("g", "still-running")
    assert told.reason.numbers == {"pod": "g-w-0", "node": "n0"}
    assert why in told.reason.text
    assert kit.decide(state, 100.0) == []
    state.report(a_report(kit, "n0", *beside, revision=3), 101.0)
    (placed,) = kit.decide(state, 101.0)
    assert isinstance(placed, Placed)


def test_a_pod_whose_gpus_another_gang_was_given_is_waited_for(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", revision=1))
    state.request(kit.gang("a", *kit.pods("a", 1, gpus=4)), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.report(a_report(kit, "n1"), 0.0)
    state.ledger.receive("n1", "", 0.0)
    state.report(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0,))), 1.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 1.0, 1.0)
    kit.decide(state, 1.0)
    assert "another pod has" in waits(state, "g")[1]
    assert adopted(state) == {}


def test_a_pod_on_a_lost_node_is_waited_for_until_the_node_is_back(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0,))), a_report(kit, "n1"))
    state.lose("n0", 0.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert "it is lost" in waits(state, "g")[1]
    state.ledger.take_back("n0")
    kit.decide(state, 61.0)
    assert "has returned but not reported" in waits(state, "g")[1]
    state.report(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0,)), revision=3, lease=1), 62.0)
    kit.decide(state, 62.0)
    assert the_message(state, "g") == {"g-w-0": ("placed", "n0", (0,))}


def test_a_lost_node_that_is_removed_is_waited_for_no_longer(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-0", gpus=(0,))), a_report(kit, "n1"))
    state.lose("n0", 0.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert state.remove("n0")
    (placed,) = kit.decide(state, 1.0)
    assert placed.pods[0].node == "n1"


def test_a_pod_that_two_nodes_report_is_waited_for(kit: Kit) -> None:
    runs = PodOnNode(pod="g-w-0", gpus=(0,))
    state = kit.state(a_report(kit, "n0", runs), a_report(kit, "n1", runs))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert "n0, n1" in waits(state, "g")[1]
    state.report(a_report(kit, "n0", revision=3), 1.0)
    kit.decide(state, 1.0)
    assert the_message(state, "g") == {"g-w-0": ("placed", "n1", (0,))}


def test_a_pod_that_is_reported_after_its_gang_has_waited_is_adopted(kit: Kit) -> None:
    """And it waits no more in the queue, nor is anything kept for it there."""
    state = kit.state(a_report(kit, "n0", revision=1))
    state.request(kit.gang("busy", *kit.pods("busy", 1, gpus=1)), 0.0, 0.0)
    state.request(kit.gang("g", *kit.pods("g", 2, gpus=2), age=1), 0.0, 0.0)
    kit.decide(state, 0.0)
    assert [each.gang for each in state.core.rows.reservations()] == ["g"]
    state.request(kit.gang("busy"), 1.0, 1.0)
    runs = [PodOnNode(pod=f"g-w-{n}", gpus=(2 * n, 2 * n + 1)) for n in range(2)]
    state.report(a_report(kit, "n0", *runs, revision=2), 1.0)
    kit.decide(state, 1.0)
    assert adopted(state) == {"g": ("g-w-0", "g-w-1")}
    assert state.core.questions.counts().waiting == 0
    assert not state.core.rows.reservations()
    assert not state.is_waiting("g")


def test_a_gpu_that_is_reserved_for_another_gang_is_given_up_first(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", revision=1))
    state.request(kit.gang("low", *kit.pods("low", 1, gpus=4), priority=1), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.request(kit.gang("high", *kit.pods("high", 1, gpus=2), priority=2), 1.0, 1.0)
    kit.decide(state, 1.0)
    assert state.core.gang("high").is_nominated
    (place,) = state.core.exported("high").places
    state.request(kit.gang("low"), 2.0, 2.0)
    runs = PodOnNode(pod="g-w-0", gpus=place.gpus[:1])
    state.report(a_report(kit, "n0", runs), 2.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1), age=1), 2.0, 2.0)
    kit.decide(state, 2.0)
    assert "reserved for another gang" in waits(state, "g")[1]
    kit.decide(state, 3.0)
    assert the_message(state, "g") == {"g-w-0": ("placed", "n0", place.gpus[:1])}
    places = the_message(state, "high")["high-w-0"]
    assert places[0] == "placed"
    assert not set(places[2]) & set(place.gpus[:1])


def surplus(message: GangRequest, *pods: int) -> GangRequest:
    asks = [
        ask.model_copy(update={"surplus": number in pods})
        for number, ask in enumerate(message.pods)
    ]
    return message.model_copy(update={"pods": tuple(asks)})


def test_what_an_elastic_gang_had_grown_by_can_be_done_without_again(kit: Kit) -> None:
    runs = [PodOnNode(pod=f"g-w-{n}", gpus=(n,)) for n in range(3)]
    state = kit.state(a_report(kit, "n0", *runs))
    message = surplus(kit.gang("g", *kit.pods("g", 4, gpus=1), priority=1), 1, 2, 3)
    state.request(message, 0.0, 0.0)
    (grown,) = kit.decide(state, 0.0)
    assert [place.pod for place in grown.pods] == ["g-w-3"]
    state.request(kit.gang("h", *kit.pods("h", 1, gpus=1), priority=1, age=1), 1.0, 1.0)
    kit.decide(state, 1.0)
    message_now = message_of(state, state.gangs["g"], 1)
    left = [pod.pod for pod in message_now.pods if pod.state.value == "preempted"]
    assert len(left) == 1
    assert left[0] != "g-w-0"


def test_an_elastic_gang_of_which_only_such_pods_run_is_there_all_the_same(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-1", gpus=(0,))))
    message = surplus(kit.gang("g", *kit.pods("g", 3, gpus=1)), 1, 2)
    state.request(message, 0.0, 0.0)
    kit.decide(state, 0.0)
    assert {pod: it[0] for pod, it in the_message(state, "g").items()} == dict.fromkeys(
        ("g-w-0", "g-w-1", "g-w-2"), "placed"
    )


def test_a_pod_of_a_gang_that_is_about_to_leave_leaves_too(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", revision=1), a_report(kit, "n1", revision=1))
    first, second = kit.pods("g", 2, gpus=2)
    state.request(kit.gang("g", first), 0.0, 0.0)
    (placed,) = kit.decide(state, 0.0)
    node = placed.pods[0].node
    other = "n1" if node == "n0" else "n0"
    state.order(node, Order.DRAIN)
    kit.decide(state, 1.0)
    state.report(a_report(kit, other, PodOnNode(pod=second.pod, gpus=(0, 1))), 2.0)
    state.request(kit.gang("g", first, second), 2.0, 2.0)
    kit.decide(state, 2.0)
    assert {pod: it[:2] for pod, it in the_message(state, "g").items()} == {
        first.pod: ("preempted", node),
        second.pod: ("preempted", other),
    }


def test_a_configuration_that_changes_leaves_those_that_wait_and_run(kit: Kit) -> None:
    runs = [PodOnNode(pod="g-w-0", gpus=(0,)), PodOnNode(pod="h-w-0", gpus=(1, 2))]
    state = kit.state(a_report(kit, "n0", *runs))
    for name in "gh":
        state.request(kit.gang(name, *kit.pods(name, 1, gpus=1)), 0.0, 0.0)
    kit.decide(state, 0.0)
    state.report(a_report(kit, "n1"), 1.0)
    state.ledger.receive("n1", "", 1.0)
    kit.decide(state, 1.0)
    assert the_message(state, "g") == {"g-w-0": ("placed", "n0", (0,))}
    assert waits(state, "h")[0] == "still-running"


def test_a_node_that_the_cluster_does_not_have_yet_is_awaited(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0"))
    kit.decide(state, 0.0)
    state.report(a_report(kit, "n1", PodOnNode(pod="g-w-0", gpus=(0,))), 1.0)
    state.ledger.receive("n1", "", 1.0)
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 1.0, 1.0)
    state.decide(1.0, 1.0)  # before the cluster is made anew
    assert "not in the cluster" in waits(state, "g")[1]
    kit.decide(state, 2.0)
    assert the_message(state, "g") == {"g-w-0": ("placed", "n1", (0,))}


def test_what_a_refused_gang_wants_anew_is_adopted_too(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", revision=1))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=5)), 0.0, 0.0)
    (refused,) = kit.decide(state, 0.0)
    assert isinstance(refused, Refused)
    state.report(a_report(kit, "n0", PodOnNode(pod="g-x-0", gpus=(0,))), 1.0)
    (ask,) = kit.pods("g", 1, gpus=1)
    state.request(kit.gang("g", ask.model_copy(update={"pod": "g-x-0"})), 1.0, 1.0)
    kit.decide(state, 1.0)
    assert the_message(state, "g") == {"g-x-0": ("placed", "n0", (0,))}


def test_a_pod_that_no_gang_lists_is_nobodys(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-7", gpus=(0,))))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=3)), 0.0, 0.0)
    (placed,) = kit.decide(state, 0.0)
    assert placed.pods[0].gpus == (1, 2, 3)
    assert adopted(state) == {}


async def test_answers_show_why_it_waits(kit: Kit) -> None:
    state = kit.state(a_report(kit, "n0", PodOnNode(pod="g-w-0")), a_report(kit, "n1"))
    state.request(kit.gang("g", *kit.pods("g", 2, gpus=3)), 0.0, 0.0)
    state.request(kit.gang("w", *kit.pods("w", 1, gpus=8)), 0.0, 0.0)
    kit.decide(state, 0.0)
    async with served(state) as (_, client):
        queue = (await client.get("/queue")).json()
        shown = [(gang["gang"], gang["position"], gang["gpus"]) for gang in queue["gangs"]]
        assert (shown, queue["total"]) == ([("g", None, 6)], 1)
        assert (await client.get("/queue?limit=1")).json()["total"] == 1
        for answer in (
            queue["gangs"][0],
            (await client.get("/gangs/g")).json(),
            (await client.get("/jobs/g/why")).json()["gangs"][0],
        ):
            assert answer["reason"]["code"] == "still-running"
            assert answer.get("state", "waiting") == "waiting"
            assert "counterfactual" not in answer
