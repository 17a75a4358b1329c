"""The Launcher's messages: each pod learns its peers, and a message fits a record."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from launcher.domain.decide import decide
from launcher.domain.model import Policy
from muster.contracts.gangs import GangDecision, GangRequest, PodDecision, PodDecisionState
from muster.contracts.jobs import Execution, JobRequest, JobSpec, TaskRoleSpec
from muster.contracts.pods import PodRequest
from muster.protocol.sizes import MAX_RECORD_BYTES, having_storages, largest_record, size

Place = Callable[[int], str]

NOW = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
JOB = "j" * 26
POLICY = Policy()


def a_role(name: str, instances: int, numbers: int, **more: Any) -> TaskRoleSpec:
    fields: dict[str, Any] = {
        "name": name, "instances": instances, "cpu": 1, "memory_mb": 1, "gpus": 0,
        "ports": {"http": 1, "p" * 100: numbers}, "command": "",
    }  # fmt: skip
    return TaskRoleSpec.model_validate(fields | more)


def a_spec(roles: tuple[TaskRoleSpec, ...], **more: Any) -> JobSpec:
    return JobSpec(virtual_cluster="v" * 255, task_roles=roles, **more)


def runs(spec: JobSpec, address: Place, order: Iterable[int] = (0,)) -> list[PodRequest]:
    """What the Launcher publishes when the gangs with these numbers get places, one by one."""
    request = JobRequest(
        revision=1, job=JOB, name="n" * 255, user="u" * 64, execution=Execution.START,
        submitted_at=NOW, spec=spec,
    )  # fmt: skip
    decision = decide(JOB, None, request, now=NOW, policy=POLICY)
    gangs = [
        publish.message for publish in decision.messages if isinstance(publish.message, GangRequest)
    ]
    story: list[PodRequest] = []
    for gang, places in _placed([gangs[number] for number in order], address):
        message = GangDecision(revision=1, gang=gang, job=JOB, epoch=1, pods=places)
        decision = decide(JOB, decision.state, message, now=NOW, policy=POLICY)
        story += [
            publish.message
            for publish in decision.messages
            if isinstance(publish.message, PodRequest)
        ]
    return story


def _placed(
    gangs: list[GangRequest], address: Place
) -> Iterator[tuple[str, tuple[PodDecision, ...]]]:
    number = 0
    for gang in gangs:
        places = []
        for pod in gang.pods:
            node = address(number)
            number += 1
            places.append(
                PodDecision(
                    pod=pod.pod, state=PodDecisionState.PLACED, node=node, address=node,
                    journal=JOB, gpus=tuple(range(100, 100 + pod.gpus)),
                    ports={label: tuple(range(20000, 20000 + n)) for label, n in pod.ports.items()},
                )
            )  # fmt: skip
        yield gang.gang, tuple(places)


def a_node_each(number: int) -> str:
    return f"{number:064}"


def test_a_pods_request_has_each_address_once_with_its_tasks() -> None:
    story = runs(a_spec((a_role("w", 5, 2),)), lambda number: f"10.0.0.{number // 2}")
    assert len(story) == 5
    for message in story:
        assert message.run is not None
        (peers,) = message.run.peers
        assert peers.addresses == ("10.0.0.0", "10.0.0.1", "10.0.0.2")
        assert peers.address_of == (0, 0, 1, 1, 2)
        assert peers.ports == {"http": ((20000,),) * 5, "p" * 100: ((20000, 20001),) * 5}


def test_a_pods_request_has_its_image_and_when_it_is_pulled() -> None:
    role = a_role("w", 1, 1, image="team/python:3.11", image_pull_policy="Always")
    (message,) = runs(a_spec((role,)), a_node_each)
    assert message.run is not None
    assert message.run.image == "team/python:3.11"
    assert message.run.image_pull_policy == "Always"


def test_a_task_that_starts_singly_gets_the_peers_that_have_a_place() -> None:
    spec = a_spec((a_role("v", 1, 1), a_role("w", 3, 1)), gang=False)
    first, second, third = runs(spec, lambda number: f"10.0.0.{number}", order=[3, 0, 1])
    assert first.run is not None
    assert second.run is not None
    assert third.run is not None
    assert [(p.role, p.address_of) for p in first.run.peers] == [("w", (None, None, 0))]
    assert [p.role for p in second.run.peers] == ["v", "w"]
    v, w = third.run.peers
    assert (v.addresses, v.address_of) == (("10.0.0.1",), (0,))
    assert (w.addresses, w.address_of) == (("10.0.0.2", "10.0.0.0"), (0, None, 1))
    assert w.ports["http"] == ((20000,), (), (20000,))


def test_the_requests_of_a_gang_of_500_take_few_bytes() -> None:
    story = runs(
        JobSpec(task_roles=(a_role("w", 500, 0, ports={"http": 1}),)),
        lambda number: f"10.0.0.{number // 8}",
    )
    assert max(size(message) for message in story) < 500 * 16


@pytest.mark.parametrize(
    ("roles", "storages", "slack_bytes"),
    [
        (lambda: (a_role("w" * 100, 1, 1000, gpus=1024),), 0, 4_000),
        (lambda: (a_role("w" * 100, 500, 1),), 0, 8_000),
        (lambda: (a_role("w" * 100, 70, 1000),), 0, 8_000),
        (lambda: tuple(a_role(f"{n:0100}", 1, 9) for n in range(300)), 0, 8_000),
        (lambda: (a_role("w", 1, 1),), 20, 8_000),
    ],
    ids=["alone", "tasks", "ports", "roles", "storages"],
)
def test_a_job_just_small_enough_fits_its_pods_records(
    roles: Callable[[], tuple[TaskRoleSpec, ...]], storages: int, slack_bytes: int
) -> None:
    """With the longest command that is let in, the records are nearly full, and not too large."""
    found = roles()

    def of(characters: int) -> JobSpec:
        return having_storages(a_spec(with_command(found, characters)), storages)

    over = largest_record(of(MAX_RECORD_BYTES))[1] - MAX_RECORD_BYTES
    spec = of(MAX_RECORD_BYTES - over)
    assert largest_record(spec) == ("pod-requested", MAX_RECORD_BYTES)
    story = runs(spec, a_node_each)
    assert len(story) == sum(role.instances for role in found)
    largest = max(size(message) for message in (story[0], story[-1]))
    assert MAX_RECORD_BYTES - slack_bytes < largest <= MAX_RECORD_BYTES


def with_command(roles: tuple[TaskRoleSpec, ...], characters: int) -> tuple[TaskRoleSpec, ...]:
    """The roles, the last one with a command of this length."""
    return (*roles[:-1], roles[-1].model_copy(update={"command": "c" * characters}))
