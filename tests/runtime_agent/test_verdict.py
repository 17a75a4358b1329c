"""Why a pod ended, as the table of rules has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.contracts.verdicts import Behavior, Fault
from prometheus_client import CollectorRegistry
from runtime_agent.domain.ending import Ending, Loss, Oom, Refusal
from runtime_agent.domain.verdict import judge
from runtime_agent.metrics import AgentMetrics

TRACE = ("Traceback (most recent call last):", "  File 'x.py'")

HINTS = (
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/ for more information.",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
)

CASES = [
    (Ending(exit_code=0), 0, "succeeded", Fault.NOBODY, Behavior.UNKNOWN),
    (Ending(exit_code=1), 255, "unrecognised", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(exit_code=127), 220, "command-not-found", Fault.USER, Behavior.PERMANENT),
    (Ending(exit_code=126), 220, "command-not-executable", Fault.USER, Behavior.PERMANENT),
    (Ending(signal=11), 139, "sigsegv", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(exit_code=139), 139, "sigsegv", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(signal=9), 137, "sigkill", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(exit_code=137), 137, "sigkill", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(signal=15), 143, "sigterm", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(exit_code=143), 143, "sigterm", Fault.UNKNOWN, Behavior.UNKNOWN),
    (Ending(signal=8), 136, "sigfpe", Fault.USER, Behavior.PERMANENT),
    (Ending(signal=9, oom=Oom.CERTAIN), -1200, "out-of-memory", Fault.USER, Behavior.PERMANENT),
    (Ending(exit_code=137, oom=Oom.CERTAIN), -1200, "out-of-memory", Fault.USER,
     Behavior.PERMANENT),
    (Ending(exit_code=137, oom=Oom.SUSPECTED), 137, "out-of-memory-suspected", Fault.UNKNOWN,
     Behavior.UNKNOWN),
    (Ending(exit_code=1, oom=Oom.CERTAIN), -1200, "out-of-memory", Fault.USER, Behavior.PERMANENT),
    (Ending(signal=9, oom=Oom.SUSPECTED), 137, "out-of-memory-suspected", Fault.UNKNOWN,
     Behavior.UNKNOWN),
    (Ending(signal=15, stop_reason="stopped"), -210, "stopped", Fault.STOP, Behavior.PERMANENT),
    (Ending(exit_code=0, stop_reason="stopped"), -210, "stopped", Fault.STOP, Behavior.PERMANENT),
    (Ending(signal=15, stop_reason="completed"), -220, "completed", Fault.STOP,
     Behavior.PERMANENT),
    (Ending(signal=15, stop_reason="withdrawn"), -1013, "withdrawn", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(signal=9, stop_reason="preempted", forced=True), -1003, "preempted", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(exit_code=143, stop_reason="supervisor-terminated"), -1013, "supervisor-terminated",
     Fault.PLATFORM, Behavior.TRANSIENT),
    (Ending(exit_code=0, stop_reason="preempted"), -1003, "preempted", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(loss=Loss.SUPERVISOR), -1011, "supervisor-lost", Fault.PLATFORM, Behavior.TRANSIENT),
    (Ending(loss=Loss.REBOOT), -1012, "node-rebooted", Fault.PLATFORM, Behavior.TRANSIENT),
    (Ending(refusal=Refusal.PORT_CONFLICT), 253, "port-conflict", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(refusal=Refusal.AGENT_RESET), -1010, "agent-reset", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(start_error="OSError: no bash"), -1204, "launch-failed", Fault.PLATFORM,
     Behavior.TRANSIENT),
    (Ending(exit_code=1, log_tail=(*TRACE, "SyntaxError: invalid syntax")), 231, "python-syntax",
     Fault.USER, Behavior.PERMANENT),
    (Ending(exit_code=1, log_tail=(*TRACE, "ModuleNotFoundError: No module named 'torch'")), 232,
     "python-import", Fault.USER, Behavior.PERMANENT),
    (Ending(exit_code=1, log_tail=("RuntimeError: CUDA out of memory. Tried to allocate",)), 226,
     "cuda-out-of-memory", Fault.USER, Behavior.PERMANENT),
    (Ending(exit_code=1, log_tail=("CUDA error: uncorrectable ECC error encountered",)), 223,
     "cuda-ecc", Fault.PLATFORM, Behavior.TRANSIENT),
    # Of PyTorch, CuPy, JAX, Triton and plain CUDA on an H100.
    *((Ending(exit_code=1, log_tail=(*TRACE, line, *HINTS)), 226, "cuda-out-of-memory",
       Fault.USER, Behavior.PERMANENT) for line in (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 214,748,364,800 bytes (all",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
        " 1.00TiB with allocator GPU_0_bfc on device 0.")),
    *((Ending(exit_code=1, log_tail=(*TRACE, line, *HINTS)), 220, "cuda-assert", Fault.USER,
       Behavior.PERMANENT) for line in (
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "cudaErrorAssert: device-side assert triggered")),
    *((Ending(exit_code=1, log_tail=(*TRACE, line, *HINTS)), 220, "cuda-illegal-address",
       Fault.UNKNOWN, Behavior.UNKNOWN) for line in (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal")),
    *((Ending(exit_code=1, log_tail=(*TRACE, line)), 220, "cuda-no-device", Fault.UNKNOWN,
       Behavior.UNKNOWN) for line in (
        "RuntimeError: No CUDA GPUs are available",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device"
        " is detected")),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "code", "rule", "fault", "behavior"), CASES)
def test_each_end_has_its_rule(
    ending: Ending, code: int, rule: str, fault: Fault, behavior: Behavior
) -> None:
    verdict = judge(ending)
    assert (verdict.code, verdict.rule, verdict.fault, verdict.behavior) == (
        code, rule, fault, behavior,
    )  # fmt: skip


def test_ended_pods_of_each_rule_count_from_zero() -> None:
    """Prometheus knows no increase of a counter that begins with 1."""
    registry = CollectorRegistry()
    AgentMetrics(registry)
    for _ending, _code, rule, *_ in CASES:
        assert registry.get_sample_value("muster_agent_pods_ended_total", {"rule": rule}) == 0, rule


RUNC = (
    "the container ended before it began: StartError: failed to create containerd task: failed to"
    " create shim task: OCI runtime create failed: runc create failed: unable to start container"
    " process: "
)
INIT = f"{RUNC}error during container init: "
DATA = f'{INIT}error mounting "/var/lib/kubelet/pods/0a/volumes/kubernetes.io~csi/pvc/mount" to'
CREATE = "CreateContainerError: failed to create containerd container: "

USERS_STARTS = [
    (f"{CREATE}unable to find user nobody2: no matching entries in passwd file", "image-user"),
    (f"{CREATE}unable to find group g: no matching entries in group file", "image-user"),
    (f"{CREATE}mount callback failed on /var/lib/containerd/tmpmounts/m1: no users found",
     "image-user"),
    (f"{CREATE}mount callback failed on /var/lib/containerd/tmpmounts/m1: open"
     " /var/lib/containerd/tmpmounts/m1/etc/passwd: no such file or directory", "image-user"),
    (f"{CREATE}openat etc/group: no such file or directory", "image-user"),
    (f"{RUNC}container init was OOM-killed (memory limit too low?)", "memory-too-small"),
    ("the container ended before it began: OOMKilled, exit code 137", "memory-too-small"),
    ("CreateContainerError: set memory limit 4194304 too low; should be at least 12582912",
     "memory-too-small"),
    (f'{INIT}chdir to cwd ("/root/app") set in config.json failed: permission denied',
     "image-directory"),
    (f"{INIT}mkdir /app/work: not a directory", "image-directory"),
    (f'{DATA} rootfs at "/data": mount src=/var/lib/kubelet/x, dst=/data, flags=MS_BIND: not a'
     " directory: Are you trying to mount a directory onto a file", "mount-path"),
    (f'{DATA} rootfs at "/data/in": create mountpoint for /data/in mount: make mountpoint'
     ' "/data/in": mkdirat /data/in: read-only file system', "mount-path"),
    ('rootfs_linux.go:76: mounting \\"/var/lib/kubelet/pods/0a/volume-subpaths/s/main/4\\" to'
     ' rootfs at \\"/data\\" caused: not a directory', "mount-path"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "rule"), USERS_STARTS)
def test_a_container_that_its_job_keeps_from_starting_is_the_users(words: str, rule: str) -> None:
    verdict = judge(Ending(start_error=words))
    assert (verdict.rule, verdict.fault, verdict.behavior) == (
        rule, Fault.USER, Behavior.PERMANENT,
    )  # fmt: skip
    assert verdict.evidence is None
    assert verdict.cause.endswith(words[-14:])


@pytest.mark.parametrize("words", [
    f'{RUNC}exec: "/muster/bin/tini": no such file or directory',
    f"{RUNC}exec /muster/bin/tini: exec format error",
    f'{DATA} rootfs at "/data": no such file or directory',
    f"{CREATE}mkdir /var/lib/containerd/snapshots/4: read-only file system",
    f'{INIT}error mounting "proc" to rootfs at "/proc": not a directory',
    f'{INIT}chdir to cwd ("/mnt/home") set in config.json failed: stale file handle',
    f"{RUNC}unable to apply cgroup configuration: device or resource busy",
])  # fmt: skip
def test_a_container_that_its_node_can_not_start_is_the_platforms(words: str) -> None:
    verdict = judge(Ending(start_error=words))
    assert (verdict.rule, verdict.evidence) == ("launch-failed", None)
    assert verdict.cause.endswith(f"process. {words}"[:500])


def test_the_line_that_tells_is_the_evidence() -> None:
    lines = ("before", "ModuleNotFoundError: No module named 'torch'", "after")
    assert judge(Ending(exit_code=1, log_tail=lines)).evidence == lines[1]
    assert judge(Ending(exit_code=1, log_tail=("first", "last", ""))).evidence == "last"
    error = "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients."
    assert judge(Ending(exit_code=1, log_tail=(*TRACE, error, *HINTS))).evidence == error


def test_a_line_that_only_mentions_an_error_is_no_evidence() -> None:
    lines = ("we handle ImportError: gracefully",)
    assert judge(Ending(exit_code=1, log_tail=lines)).rule == "unrecognised"


endings = st.builds(
    Ending,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    oom=st.sampled_from(Oom),
    stop_reason=st.none() | st.sampled_from(["stopped", "withdrawn", "anything else"]),
    forced=st.booleans(),
    start_error=st.none() | st.just("OSError: disk"),
    loss=st.none() | st.sampled_from(Loss),
    refusal=st.none() | st.sampled_from(Refusal),
    log_tail=st.lists(st.text(max_size=40), max_size=4).map(tuple),
)


@given(endings)
def test_every_end_has_a_verdict_and_only_a_good_one_is_a_success(ending: Ending) -> None:
    verdict = judge(ending)
    assert verdict.cause
    assert verdict.outcome
    assert verdict.symptom
    ended_well: Any = (
        ending.exit_code == 0 and not ending.stop_reason and not ending.loss
        and not ending.refusal and not ending.start_error
    )  # fmt: skip
    assert (verdict.code == 0) == ended_well


@given(endings)
def test_what_the_platform_did_is_never_charged_to_the_user(ending: Ending) -> None:
    verdict = judge(ending)
    if ending.loss is Loss.DISK_LIMIT:  # kubelet ended it, for what the pod did
        assert (verdict.fault, verdict.behavior) == (Fault.USER, Behavior.PERMANENT)
    elif ending.loss is Loss.DISK_FILLED:
        assert (verdict.fault, verdict.behavior) == (Fault.UNKNOWN, Behavior.UNKNOWN)
    elif ending.loss or ending.stop_reason == "withdrawn":
        assert (verdict.fault, verdict.behavior) == (Fault.PLATFORM, Behavior.TRANSIENT)


ENDS = [{"exit_code": code} for code in range(256)] + [
    {"signal": number} for number in range(1, 65)
]


@pytest.mark.parametrize("oom", Oom)
def test_no_program_can_end_itself_at_the_platforms_cost(oom: Oom) -> None:
    for end in ENDS:
        verdict = judge(Ending(oom=oom, **end))
        assert verdict.fault is not Fault.PLATFORM, end
        assert verdict.behavior is not Behavior.TRANSIENT, end


def test_no_line_of_a_task_takes_a_pattern_for_ever() -> None:
    for words in ("OOM wh allocator ", "cupyOutOfMemory", "Out of memory allocat ", "a.b.Error"):
        line = (words * 2_000)[:16_384]
        assert judge(Ending(exit_code=1, log_tail=(line,))).rule == "unrecognised"
    for words in ('mounting "/volumes/ to rootfs ', "chdir to cwd / failed: ", "/volumes/"):
        line = f"mounting {words * 2_000}"[:16_384]
        assert judge(Ending(start_error=line)).rule == "launch-failed"
