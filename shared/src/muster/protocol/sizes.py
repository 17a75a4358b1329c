"""How large the records of a job can become: a job is rejected at submission when one of them could
exceed 1 MiB, the most that a record may have.

The bounds are made from the models themselves: each is filled with the longest values that its
writer may put there, and its JSON is measured.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import NamedTuple

from muster.contracts.gangs import (
    GangClass,
    GangDecision,
    GangEnd,
    GangRequest,
    PodAsk,
    PodDecision,
    PodDecisionState,
    Wait,
)
from muster.contracts.jobs import (
    Execution,
    JobChange,
    JobRequest,
    JobSpec,
    JobState,
    JobStatus,
    Retries,
    TaskRoleSpec,
    TaskRoleStatus,
    TaskState,
    TaskStatus,
    Trigger,
)
from muster.contracts.model import Model, Reason
from muster.contracts.pods import PodAction, PodRequest, PodRun, PodStop, RolePeers, RoleShape
from muster.contracts.secrets import JobSecrets, Secrets
from muster.contracts.storages import (
    CLAIM_CHARACTERS,
    PATH_CHARACTERS,
    SUB_PATH_CHARACTERS,
    StorageMount,
)
from muster.contracts.verdicts import Behavior, Fault, Verdict
from muster.sealing import sealed_length

MAX_RECORD_BYTES = 1_000_000
"""Of a record's value; the rest of the bus's 1 MiB is for headers and the batch around it."""

TEXT_BYTES = 800
"""The characters of one task's verdict in `job-updated`: evidence of 500 characters, cause, symptom
and outcome."""

_NODE = "n" * 64
_LOG_URL = "h" * 96
_USER = "u" * 64
_JOB = "j" * 26
_JOB_NAME = "n" * 255
_BIG = 10**9
_TIME = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
_NAME = f"{_JOB}-{_BIG}-{'r' * 100}-{_BIG}-{_BIG}"
_KEY = "k" * 44
_PORT = 20000
_GPU = 100
_REASON = Reason(code="r" * 60, text="t" * 2000, numbers={})


def size(model: Model) -> int:
    """The bytes of a record's value."""
    return len(model.model_dump_json(exclude_none=True).encode())


def having_secrets(spec: JobSpec, secrets: Secrets) -> JobSpec:
    """The specification as large as with these secrets, sealed."""
    longest = JobSecrets(job=_NAME, **dict(secrets))
    return spec.model_copy(update={"secrets": "s" * sealed_length(size(longest))})


def having_storages(spec: JobSpec, count: int) -> JobSpec:
    """The specification as large as with this many storages."""
    longest = StorageMount(
        name="n" * 63,
        mount_path="p" * PATH_CHARACTERS,
        claim="c" * CLAIM_CHARACTERS,
        host_path="h" * PATH_CHARACTERS,
        sub_path="s" * SUB_PATH_CHARACTERS,
    )
    return spec.model_copy(update={"mounts": (longest,) * count})


def largest_record(spec: JobSpec) -> tuple[str, int]:
    """The topic of the largest record that a job can have, and how many bytes it can be."""
    decision = status = request = peers = own = 0
    for role in spec.task_roles:
        each = _task_bytes(_sized(role, needs_key=spec.secrets is not None))
        decision += role.instances * each.decision
        status += role.instances * each.status + size(_status(role))
        request += role.instances * (each.ask + _requested_bytes(role))
        peers += each.peers + role.instances * each.peer
        own = max(own, size(role) + each.peer)
    empty = _empty()
    sizes = {
        "job-submitted": empty["job-submitted"] + size(spec),
        "job-updated": empty["job-updated"] + status,
        "gang-requested": empty["gang-requested"] + request,
        "placement-decided": empty["placement-decided"] + decision,
        "pod-requested": empty["pod-requested"]
        + (own + peers + _shapes_bytes(spec) + len(spec.secrets or ""))
        + sum(1 + size(mount) for mount in spec.mounts),
    }
    topic = max(sizes, key=lambda name: sizes[name])
    return topic, sizes[topic]


@dataclass(frozen=True, slots=True)
class _TaskBytes:
    """What one task adds to each of the records that list all tasks; ``peers`` is what its role
    adds to the peers of a pod besides its tasks. A pod's own ports are counted as one more peer.
    """

    decision: int
    status: int
    ask: int
    peers: int
    peer: int


class _Sized(NamedTuple):
    """All of a role that the bytes of its tasks depend on."""

    role: str
    instances: int
    gpus: int
    cpu: int
    memory_mb: int
    ports: tuple[tuple[str, int], ...]
    needs_key: bool


def _sized(role: TaskRoleSpec, *, needs_key: bool) -> _Sized:
    ports = tuple(role.ports.items())
    return _Sized(role.name, role.instances, role.gpus, role.cpu, role.memory_mb, ports, needs_key)


@lru_cache(maxsize=128)
def _task_bytes(sized: _Sized) -> _TaskBytes:
    role, instances, gpus, cpu, memory_mb, ports, needs_key = sized
    pod = f"{_JOB}-{_BIG}-{role}-{instances}-{_BIG}"
    placed = {label: (_PORT,) * count for label, count in ports}
    where = {"node": _NODE, "address": _NODE, "log_url": _LOG_URL}
    held = {"gpus": (_GPU,) * gpus, "ports": placed}
    decision = PodDecision(
        pod=pod,
        state=PodDecisionState.PREEMPTED,
        journal=_JOB,
        secrets_key=_KEY if needs_key else None,
        **where,
        **held,
    )
    status = TaskStatus(
        index=instances,
        state=TaskState.SUCCEEDED,
        attempt=_BIG,
        pod=pod,
        retries=_BIG,
        accountable_retries=_BIG,
        created_at=_TIME,
        launched_at=_TIME,
        completed_at=_TIME,
        exit_code=-8000,
        verdict=_verdict(TEXT_BYTES),
        **where,
        **held,
    )
    ask = PodAsk(pod=pod, role=role, gpus=gpus, cpu=cpu, memory_mb=memory_mb, ports=dict(ports))
    alone = RolePeers(role=role, addresses=(), address_of=(), ports=dict.fromkeys(placed, ()))
    first = RolePeers(
        role=role,
        addresses=(_NODE,),
        address_of=(0,),
        ports={label: (numbers,) for label, numbers in placed.items()},
    )
    commas, digits = 2 + len(placed), len(str(instances))
    return _TaskBytes(
        decision=1 + size(decision),
        status=1 + size(status),
        ask=1 + size(ask),
        peers=1 + size(alone),
        peer=size(first) - size(alone) + commas + digits - 1,
    )


def _requested_bytes(role: TaskRoleSpec) -> int:
    """What the role's requests add to the ask for each pod."""
    is_elastic = role.min_instances is not None
    if not (role.gpu_types or role.pin or role.resources or is_elastic):
        return 0
    asked = PodAsk(
        pod="",
        role="",
        gpu_types=role.gpu_types,
        pin=role.pin,
        resources=role.resources,
        surplus=is_elastic,
    )
    return size(asked) - size(PodAsk(pod="", role=""))


def _status(role: TaskRoleSpec) -> TaskRoleStatus:
    return TaskRoleStatus(name=role.name, min_instances=role.min_instances, tasks=())


def _shapes_bytes(spec: JobSpec) -> int:
    return sum(1 + size(_shape(role)) for role in spec.task_roles)


def _shape(role: TaskRoleSpec) -> RoleShape:
    return RoleShape(
        name=role.name,
        instances=role.instances,
        gpus=role.gpus,
        cpu=role.cpu,
        memory_mb=role.memory_mb,
        shm_mb=role.shm_mb or 0,
        min_failed_instances=role.min_failed_instances,
        min_succeeded_instances=role.min_succeeded_instances,
        min_instances=role.min_instances,
    )


def _verdict(text_bytes: int) -> Verdict:
    return Verdict(
        code=-8000,
        phrase="p" * 50,
        rule="r" * 50,
        fault=Fault.PLATFORM,
        behavior=Behavior.TRANSIENT_CONFLICT,
        cause="c",
        evidence="e" * text_bytes,
    )


@cache
def _empty() -> dict[str, int]:
    """The records of a job without its tasks."""
    role = TaskRoleSpec(name="r", instances=1, cpu=1, memory_mb=1, gpus=0, command="")
    spec = JobSpec(task_roles=())
    identity = {"job": _JOB, "name": _JOB_NAME, "user": _USER}
    run = PodRun(
        user=_USER,
        user_number=_BIG,
        job_name=f"{_USER}~{_JOB_NAME}",
        virtual_cluster=_JOB_NAME,
        role="r",
        index=_BIG,
        job_attempt=_BIG,
        task_attempt=_BIG,
        image="",
        command="",
        cpu=_BIG,
        memory_mb=_BIG,
        gpus=(100,) * 1024,
        secrets="",
        roles=(),
        peers=(),
    )
    records: dict[str, Model] = {
        "job-submitted": JobRequest(
            **identity,
            execution=Execution.START,
            submitted_at=_TIME,
            stop_requested_by=f"The alert rule {_USER}",
            spec=spec,
            revision=_BIG,
            seen=_BIG,
        ),
        "job-updated": JobStatus(
            **identity,
            virtual_cluster=_JOB_NAME,
            state=JobState.SUCCEEDED,
            retries=Retries(user=_BIG, platform=_BIG, resource=_BIG),
            reason=_REASON,
            gang_class=GangClass.OPPORTUNISTIC,
            lender=_JOB_NAME,
            submitted_at=_TIME,
            retry_at=_TIME,
            created_at=_TIME,
            launched_at=_TIME,
            completed_at=_TIME,
            attempt_created_at=_TIME,
            attempt_launched_at=_TIME,
            attempt_completed_at=_TIME,
            verdict=_verdict(16_384),
            trigger=Trigger(message="m" * 1000, role=role.name, index=_BIG),
            ended="e" * 1000,
            dead_letter="d" * 1000,
            notify=tuple(JobChange),
        ),
        "gang-requested": GangRequest(
            gang=_NAME,
            **identity,
            virtual_cluster=_JOB_NAME,
            priority=1000,
            submitted_at=_TIME,
            group="g" * 100,
            lazy_preemption=False,
            limit_s=_BIG,
            expected_s=_BIG,
            min_run_s=_BIG,
            checkpoint_s=_BIG,
            borrow=False,
            checkpointed_at=_TIME,
            needs_keys=True,
            end=GangEnd.SUCCEEDED,
        ),
        "placement-decided": GangDecision(
            gang=_NAME,
            job=_JOB,
            epoch=_BIG,
            lender=_JOB_NAME,
            reason=_REASON,
            wait=Wait(as_of=_BIG, position=_BIG, waiting=_BIG, expected_start=_TIME),
        ),
        "pod-requested": PodRequest(
            pod=_NAME,
            job=_JOB,
            gang=_NAME,
            node=_NODE,
            journal=_JOB,
            action=PodAction.FORGET,
            run=run,
            stop=PodStop(reason="r" * 1000, grace_s=600.0),
        ),
    }
    return {topic: size(record) for topic, record in records.items()}
