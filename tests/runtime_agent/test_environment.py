"""The environment that a task sees."""

from __future__ import annotations

from dataclasses import replace

from muster.contracts.pods import PodRun, RolePeers, RoleShape
from runtime_agent.domain.environment import Place, task_environment

PLACE = Place(
    pod="job1-0-worker-1-2", job="job1", node="n1", address="10.0.0.2",
    work_dir="/pods/x/work", simulated_gpus=False, gpu_names={2: "2", 5: "5"},
    inherited={"PATH": "/bin"},
)  # fmt: skip


def a_role(name: str, instances: int) -> RoleShape:
    return RoleShape(
        name=name, instances=instances, gpus=1, cpu=4, memory_mb=8192, shm_mb=512,
        min_failed_instances=1, min_succeeded_instances=-1,
    )  # fmt: skip


def a_run(**more: object) -> PodRun:
    fields: dict[str, object] = {
        "user": "ada", "job_name": "ada~mnist", "virtual_cluster": "default", "role": "worker",
        "index": 1, "job_attempt": 1, "task_attempt": 2, "command": "true", "gpus": (2, 5),
        "cpu": 4, "memory_mb": 8192, "ports": {"http": (20001,), "grpc": (20002, 20003)},
        "roles": (a_role("ps", 1), a_role("worker", 2)),
        "peers": (
            RolePeers(role="ps", addresses=("10.0.0.1",), address_of=(0,),
                      ports={"http": ((20000,),)}),
            RolePeers(role="worker", addresses=("10.0.0.2", "10.0.0.1"), address_of=(1, 0),
                      ports={"http": ((20004,), (20001,)), "grpc": ((), (20002, 20003))}),
        ),
    }  # fmt: skip
    return PodRun.model_validate(fields | more)


def test_a_task_finds_its_peers_by_their_addresses_and_ports() -> None:
    env = task_environment(a_run(), PLACE)
    assert env["PAI_TASK_ROLE_worker_HOST_LIST"] == "10.0.0.1:20004,10.0.0.2:20001"
    assert env["PAI_HOST_IP_ps_0"] == "10.0.0.1"
    assert env["PAI_PORT_LIST_worker_1_grpc"] == "20002,20003"
    assert env["PAI_ps_0_http_PORT"] == "20000"
    assert env["PAI_TASK_ROLE_LIST"] == "ps,worker"
    assert env["PAI_TASK_ROLE_TASK_COUNT_worker"] == "2"
    assert env["PAI_RESOURCE_ps"] == "1,4,8192,512"
    assert env["PAI_JOB_TASK_COUNT"] == "3"
    assert env["PAI_TASK_ROLE_INSTANCES"] == "ps:0,worker:0,worker:1"
    assert "PAI_PORT_LIST_worker_0_grpc" not in env


def test_a_task_finds_itself_at_its_own_address() -> None:
    """On Kubernetes that of its pod, at which alone a single task listens."""
    env = task_environment(a_run(), replace(PLACE, address="172.16.0.9"))
    assert env["PAI_HOST_IP_worker_1"] == env["PAI_CURRENT_CONTAINER_IP"] == "172.16.0.9"
    assert env["PAI_TASK_ROLE_worker_HOST_LIST"] == "10.0.0.1:20004,172.16.0.9:20001"


def test_a_task_gets_the_least_number_of_tasks() -> None:
    worker = a_role("worker", 4).model_copy(update={"min_instances": 2})
    env = task_environment(a_run(roles=(a_role("ps", 1), worker)), PLACE)
    assert env["MUSTER_MIN_TASK_COUNT_worker"] == "2"
    assert env["PAI_TASK_ROLE_TASK_COUNT_worker"] == "4"
    assert env["MUSTER_MIN_TASK_COUNT_ps"] == "1"


def test_a_task_does_not_get_a_peer_without_a_place() -> None:
    worker = RolePeers(
        role="worker",
        addresses=("10.0.0.2",),
        address_of=(None, 0, None, 0),
        ports={"grpc": ((), (20002, 20003), (), (20005, 20006))},
    )
    env = task_environment(
        a_run(roles=(a_role("ps", 1), a_role("worker", 5)), peers=[worker]), PLACE
    )
    assert env["PAI_TASK_ROLE_INSTANCES"] == "worker:1,worker:3"
    assert env["PAI_TASK_ROLE_worker_HOST_LIST"] == "10.0.0.2:20002,10.0.0.2:20005"
    assert [name for name in env if name.startswith("PAI_HOST_IP_")] == [
        "PAI_HOST_IP_worker_1",
        "PAI_HOST_IP_worker_3",
    ]
    assert "PAI_TASK_ROLE_ps_HOST_LIST" not in env


def test_a_task_knows_itself_and_its_attempts() -> None:
    env = task_environment(a_run(), PLACE)
    assert env["PAI_CURRENT_TASK_ROLE_NAME"] == "worker"
    assert env["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"] == "1"
    assert env["PAI_CONTAINER_HOST_grpc_PORT_LIST"] == "20002,20003"
    assert env["PAI_CONTAINER_HOST_PORT_LIST"] == "http:20001;grpc:20002,20003;"
    assert env["PAI_JOB_NAME"] == "ada~mnist"
    assert env["PAI_WORK_DIR"] == "/pods/x/work"
    assert (env["MUSTER_JOB_ATTEMPT"], env["MUSTER_TASK_ATTEMPT"]) == ("1", "2")
    assert env["MUSTER_POD"] == "job1-0-worker-1-2"


def test_a_task_sees_its_gpus_and_one_without_any_sees_none() -> None:
    assert task_environment(a_run(), PLACE)["CUDA_VISIBLE_DEVICES"] == "2,5"
    without = task_environment(a_run(gpus=()), PLACE)
    assert (without["CUDA_VISIBLE_DEVICES"], without["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_a_task_is_given_its_gpus_by_the_names_that_cuda_knows_them_by() -> None:
    place = replace(PLACE, gpu_names={2: "MIG-1", 5: "GPU-b"})
    env = task_environment(a_run(), place)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "MIG-1,GPU-b"


def test_every_value_is_text_that_a_process_can_take() -> None:
    env = task_environment(a_run(), PLACE)
    assert all(isinstance(value, str) and "\0" not in value for value in env.values())
