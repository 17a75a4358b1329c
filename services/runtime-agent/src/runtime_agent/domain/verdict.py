"""Why a pod ended: the first rule of a table that fits the evidence.

Codes and phrases are those of OpenPAI's exit specification; -1010 to -1019, which it leaves free,
are for ends that it does not know. Cause (why), symptom (what was seen) and outcome (what it means
for the pod) are kept apart.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass

from muster.contracts.verdicts import Behavior, Fault, Verdict

from runtime_agent.domain.ending import (
    AGENT_RESET,
    COMPLETED,
    NODE_LOST,
    OVER,
    PREEMPTED,
    SUPERVISOR_TERMINATED,
    WITHDRAWN,
    Ending,
    Loss,
    Oom,
    Refusal,
)

EVIDENCE_LINES = 50
"""How far back from a log's end the line with the cause is searched."""
EVIDENCE_CHARS = 500
LINE_CHARS = 2_000
"""Of a line, how much is searched: a task may write one that takes a pattern for ever."""


@dataclass(frozen=True)
class _Rule:
    name: str
    code: int
    phrase: str
    fault: Fault
    behavior: Behavior
    cause: str


_TRANSIENT, _PERMANENT, _UNKNOWN = Behavior.TRANSIENT, Behavior.PERMANENT, Behavior.UNKNOWN

_REFUSALS: Mapping[Refusal, _Rule] = {
    Refusal.AGENT_RESET: _Rule(
        "agent-reset", -1010, "PodAgentReset", Fault.PLATFORM, _TRANSIENT,
        "The node's agent has lost its journal since the pod was placed.",
    ),
    Refusal.PORT_CONFLICT: _Rule(
        "port-conflict", 253, "ContainerPortConflict", Fault.PLATFORM, _TRANSIENT,
        "A process that is not a pod holds a port that was given to the pod.",
    ),
    Refusal.DEVICE_BUSY: _Rule(
        "device-busy", -1014, "PodDeviceBusy", Fault.PLATFORM, _TRANSIENT,
        "Another live pod holds a GPU or a port that was given to the pod.",
    ),
    Refusal.BAD_REQUEST: _Rule(
        "bad-request", -1015, "PodRequestInvalid", Fault.PLATFORM, _PERMANENT,
        "The request to run the pod can't be carried out on this node.",
    ),
    Refusal.NEVER_RAN: _Rule(
        "never-ran", -1016, "PodNeverRan", Fault.STOP, _TRANSIENT,
        "The pod was to stop before it was ever to run here.",
    ),
    Refusal.LAUNCH_FAILED: _Rule(
        "launch-failed", -1204, "ContainerDockerStartUnknownError", Fault.PLATFORM, _TRANSIENT,
        "The node could not start the pod's process.",
    ),
    Refusal.REJECTED: _Rule(
        "rejected", -200, "PodSpecPermanentError", Fault.PLATFORM, _PERMANENT,
        "Kubernetes does not accept the pod.",
    ),
    Refusal.NAME_TAKEN: _Rule(
        "name-taken", -200, "PodSpecPermanentError", Fault.PLATFORM, _PERMANENT,
        "Kubernetes has another object under the pod's name.",
    ),
    Refusal.OUT_OF_RESOURCES: _Rule(
        "out-of-resources", -1002, "PodOutOfResources", Fault.PLATFORM, _TRANSIENT,
        "The node had less free than the pod needs.",
    ),
    Refusal.NOT_ADMITTED: _Rule(
        "not-admitted", -1006, "PodNotAdmitted", Fault.PLATFORM, _TRANSIENT,
        "The node's kubelet did not admit the pod.",
    ),
    Refusal.IMAGE_DENIED: _Rule(
        "image-denied", 254, "ContainerImageNotExists", Fault.USER, _PERMANENT,
        "The image does not exist, or its registry does not give it to this job.",
    ),
    Refusal.IMAGE_NOT_PULLED: _Rule(
        "image-not-pulled", 254, "ContainerImageNotPulled", Fault.PLATFORM, _TRANSIENT,
        "The node could not pull the image in time.",
    ),
    Refusal.NO_HOST_NETWORK: _Rule(
        "no-host-network", -1023, "PodHostNetworkDenied", Fault.PLATFORM, _PERMANENT,
        "Tasks with peers use the node's network, and tasks with `rdma` lock its memory.",
    ),
    Refusal.NO_STORAGE: _Rule(
        "no-storage", -1022, "PodStorageNotMounted", Fault.PLATFORM, _PERMANENT,
        "The node can't mount a storage of the job.",
    ),
    Refusal.STORAGE_NOT_MOUNTED: _Rule(
        "storage-not-mounted", -1029, "PodStorageNotMountedInTime", Fault.PLATFORM, _TRANSIENT,
        "The node could not mount a volume of the pod in time.",
    ),
}  # fmt: skip

_LOSSES: Mapping[Loss, _Rule] = {
    Loss.SUPERVISOR: _Rule(
        "supervisor-lost", -1011, "PodSupervisorLost", Fault.PLATFORM, _TRANSIENT,
        "The process that watches over the pod was killed, and the pod with it.",
    ),
    Loss.REBOOT: _Rule(
        "node-rebooted", -1012, "NodeRebooted", Fault.PLATFORM, _TRANSIENT,
        "The node was started anew while the pod ran.",
    ),
    Loss.DIRECTORY: _Rule(
        "record-lost", -1017, "PodRecordLost", Fault.PLATFORM, _TRANSIENT,
        "The pod's directory has vanished from the node.",
    ),
    Loss.CONTAINER: _Rule(
        "container-lost", 250, "ContainerLost", Fault.PLATFORM, _TRANSIENT,
        "The node's container runtime lost the pod's container.",
    ),
    Loss.EVICTED: _Rule(
        "evicted", -1000, "PodEvicted", Fault.PLATFORM, _TRANSIENT,
        "The node's kubelet evicted the pod.",
    ),
    Loss.DISK_LIMIT: _Rule(
        "disk-limit", -1027, "PodDiskLimitExceeded", Fault.USER, _PERMANENT,
        "The pod used more disk than its limit allows.",
    ),
    Loss.DISK_FILLED: _Rule(
        "disk-filled", -1028, "PodFilledDisk", Fault.UNKNOWN, _UNKNOWN,
        "The node ran short of disk, of which the pod had used much: write to a storage.",
    ),
    Loss.DISPLACED: _Rule(
        "displaced", -1003, "PodPreemptedForCriticalPod", Fault.PLATFORM, _TRANSIENT,
        "The node's kubelet ended the pod for one that is critical for the cluster.",
    ),
    Loss.NODE_SHUTDOWN: _Rule(
        "node-shutdown", -1001, "NodeShutdown", Fault.PLATFORM, _TRANSIENT,
        "The node was shut down while the pod ran.",
    ),
    Loss.DELETED: _Rule(
        "deleted", -101, "PodExternalDeleted", Fault.PLATFORM, _TRANSIENT,
        "Somebody else deleted the pod.",
    ),
}  # fmt: skip

_STOPS: Mapping[str, _Rule] = {
    WITHDRAWN: _Rule(
        "withdrawn", -1013, "PodWithdrawn", Fault.PLATFORM, _TRANSIENT,
        "The node's agent was asked to end and took its pods down.",
    ),
    SUPERVISOR_TERMINATED: _Rule(
        "supervisor-terminated", -1013, "PodWithdrawn", Fault.PLATFORM, _TRANSIENT,
        "The node ended the process that watches over the pod, as at a shutdown.",
    ),
    AGENT_RESET: _REFUSALS[Refusal.AGENT_RESET],
    NODE_LOST: _Rule(
        "node-lost", -1001, "PodNodeLost", Fault.PLATFORM, _TRANSIENT,
        "The node that ran the pod was declared lost.",
    ),
    OVER: _Rule(
        "over", -1018, "PodOver", Fault.PLATFORM, _TRANSIENT,
        "The Launcher did not know the pod, or knew that it had ended.",
    ),
    PREEMPTED: _Rule(
        "preempted", -1003, "PodPreemptedForCriticalPod", Fault.PLATFORM, _TRANSIENT,
        "The pod had to leave its place: for another job, or because its node is drained.",
    ),
    COMPLETED: _Rule(
        "completed", -220, "FrameworkAttemptCompletion", Fault.STOP, _PERMANENT,
        "The job attempt was complete without this pod.",
    ),
}  # fmt: skip
_STOPPED = _Rule(
    "stopped", -210, "StopFrameworkRequested", Fault.STOP, _PERMANENT, "The pod was asked to stop."
)

_OOM = _Rule(
    "out-of-memory", -1200, "UserContainerDockerOOMKilled", Fault.USER, _PERMANENT,
    "The pod used more memory than it had asked for.",
)  # fmt: skip
_OOM_SUSPECTED = _Rule(
    "out-of-memory-suspected", 137, "SigKillReceived", Fault.UNKNOWN, _UNKNOWN,
    "The kernel killed processes for want of memory while the pod ran; likely this one.",
)  # fmt: skip

_SIGNALS: Mapping[int, _Rule] = {
    # OpenPAI calls these four the platform's. But a program can kill itself, or exit with the code;
    # what Muster or a control group did has a rule of its own, and never comes here.
    2: _Rule("sigint", 130, "SigIntReceived", Fault.UNKNOWN, _UNKNOWN, "It was interrupted."),
    3: _Rule("sigquit", 131, "SigQuitReceived", Fault.UNKNOWN, _UNKNOWN, "It received SIGQUIT."),
    9: _Rule("sigkill", 137, "SigKillReceived", Fault.UNKNOWN, _UNKNOWN,
             "Neither Muster nor a memory limit killed it: the job did, or somebody on its node."),
    15: _Rule("sigterm", 143, "SigTermReceived", Fault.UNKNOWN, _UNKNOWN,
              "Muster did not ask it to end: the job did, or somebody on its node."),
    4: _Rule("sigill", 132, "SigIllReceived", Fault.USER, _PERMANENT,
             "The program ran an instruction that this processor does not have."),
    7: _Rule("sigbus", 135, "SigBusReceived", Fault.USER, _PERMANENT,
             "The program touched memory that is not there."),
    8: _Rule("sigfpe", 136, "SigFpeReceived", Fault.USER, _PERMANENT,
             "The program made an arithmetic error."),
    13: _Rule("sigpipe", 141, "SigPipeReceived", Fault.USER, _PERMANENT,
              "The program wrote to a pipe that nobody reads."),
    6: _Rule("sigabrt", 134, "SigAbrtReceived", Fault.UNKNOWN, _UNKNOWN, "The program aborted."),
    11: _Rule("sigsegv", 139, "SigSegvReceived", Fault.UNKNOWN, _UNKNOWN,
              "The program touched memory that is not its own."),
}  # fmt: skip

_LINES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"uncorrectable ECC error", re.IGNORECASE),
     _Rule("cuda-ecc", 223, "ContainerCudaUncorrectableECCError", Fault.PLATFORM, _TRANSIENT,
           "A GPU has a memory error that it can't correct.")),
    (re.compile(r"CUDA (error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY"
                r"|cupy[\w.]{0,80}OutOfMemoryError|(Out of memory|OOM) wh.{0,400} allocator GPU_",
                re.IGNORECASE),
     _Rule("cuda-out-of-memory", 226, "ContainerCudaOOMKilled", Fault.USER, _PERMANENT,
           "The program asked for more GPU memory than there is.")),
    (re.compile(r"device-side assert triggered|CUDA_ERROR_ASSERT"),
     _Rule("cuda-assert", 220, "UserCommandExitWithError", Fault.USER, _PERMANENT,
           "A kernel on the GPU met a failed assertion, such as an index out of range.")),
    # Xid 31 comes with it, which is nearly always the program's, but also that of broken hardware.
    (re.compile(r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"),
     _Rule("cuda-illegal-address", 220, "UserCommandExitWithError", Fault.UNKNOWN, _UNKNOWN,
           "A kernel on the GPU touched memory that is not its own.")),
    (re.compile(r"No CUDA GPUs are available|no CUDA-capable device is detected"),
     _Rule("cuda-no-device", 220, "UserCommandExitWithError", Fault.UNKNOWN, _UNKNOWN,
           "The program found no GPU: the job asks for none, or the driver gave it none.")),
    (re.compile(r"^(SyntaxError|IndentationError|TabError): "),
     _Rule("python-syntax", 231, "SyntaxError", Fault.USER, _PERMANENT,
           "The program is not valid Python.")),
    (re.compile(r"^(ImportError|ModuleNotFoundError): "),
     _Rule("python-import", 232, "ImportError", Fault.USER, _PERMANENT,
           "The program imports what is not installed in its image (without containers: on its"
           " node).")),
    (re.compile(r"^IndexError: "),
     _Rule("python-index", 233, "IndexOutOfRange", Fault.USER, _PERMANENT,
           "The program looked past the end of a list.")),
)  # fmt: skip

_STARTS: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    # Of a container that its runtime can't start. The first program is Muster's own, in any image,
    # so that one that can't be executed is the platform's.
    (re.compile(r"container init was OOM-killed|\bOOMKilled\b|memory limit \d+ too low"),
     _Rule("memory-too-small", -1200, "UserContainerDockerOOMKilled", Fault.USER, _PERMANENT,
           "The pod has too little memory for its container to start: raise `memoryMB`.")),
    (re.compile(r"unable to find (user|group) |\bno (users|groups) found"
                r"|uids and gids must be in range"
                r"|\bopen(at)? \S*\betc/(passwd|group): no such file or directory"),
     _Rule("image-user", -1024, "ContainerImageUserUnknown", Fault.USER, _PERMANENT,
           "The image names a user or group that it does not have: correct its USER,"
           " or add the user to the image.")),
    (re.compile(r"chdir to cwd .* failed: "
                r"(permission denied|no such file or directory|not a directory)"
                r"|container init: mkdir \S*: not a directory", re.DOTALL),
     _Rule("image-directory", -1025, "ContainerImageDirectoryNotEntered", Fault.USER, _PERMANENT,
           "The image's user can't enter the image's working directory: correct its WORKDIR,"
           " or the directory's rights.")),
    # A source that is missing, or a file system of the node that fails, is the platform's.
    (re.compile(r"mounting \S*/(volumes|volume-subpaths)/\S* to rootfs\b.*"
                r"(not a directory|read-only file system)", re.DOTALL),
     _Rule("mount-path", -1026, "ContainerMountPathInvalid", Fault.USER, _PERMANENT,
           "A storage, or a directory of Muster, can't be mounted at its path: the image has a file"
           " there, or a link to what is read-only. Choose another `mountPath` or image.")),
)  # fmt: skip

_PYTHON_ERROR = re.compile(r"(?!\d)[\w.]+(Error|Exception|Interrupt|Exit|Warning)(: |$)")
"""What ends a traceback. Hints of a library may follow it."""

_NOT_FOUND = _Rule(
    "command-not-found", 220, "UserCommandExitWithError", Fault.USER, _PERMANENT,
    "A command of the job is not installed in its image (without containers: on its node).",
)  # fmt: skip
_NOT_EXECUTABLE = _Rule(
    "command-not-executable", 220, "UserCommandExitWithError", Fault.USER, _PERMANENT,
    "A command of the job may not be executed.",
)  # fmt: skip
_SUCCEEDED = _Rule("succeeded", 0, "Succeeded", Fault.NOBODY, _UNKNOWN, "The program ended well.")
_FAILED = _Rule(
    "unrecognised", 255, "PAIRuntimeUnknownFailed", Fault.UNKNOWN, _UNKNOWN,
    "The program ended with an error that no rule knows.",
)  # fmt: skip

RULES = frozenset(
    rule.name
    for rule in (
        *_REFUSALS.values(),
        *_LOSSES.values(),
        *_STOPS.values(),
        *_SIGNALS.values(),
        *(rule for _pattern, rule in (*_LINES, *_STARTS)),
        *(_STOPPED, _OOM, _OOM_SUSPECTED, _NOT_FOUND, _NOT_EXECUTABLE, _SUCCEEDED, _FAILED),
    )
)
"""The names of all rules."""


def judge(ending: Ending) -> Verdict:
    """The verdict; `code` 0 only where the pod ran to a good end that nobody asked for."""
    rule, evidence, detail = _find(ending)
    return Verdict(
        code=rule.code,
        phrase=rule.phrase,
        rule=rule.name,
        fault=rule.fault,
        behavior=rule.behavior,
        cause=f"{rule.cause} {detail}".strip(),
        symptom=_symptom(ending),
        outcome=_outcome(ending, rule),
        evidence=None if evidence is None else evidence[:EVIDENCE_CHARS],
    )


def _find(ending: Ending) -> tuple[_Rule, str | None, str]:
    """The rule, the line of the log that it goes by, and what else its cause says: of a pod that
    never ran, the words of its runtime.
    """
    if ending.loss is not None:
        return _LOSSES[ending.loss], None, ending.detail
    if ending.stop_reason is not None:
        return _STOPS.get(ending.stop_reason, _STOPPED), None, ending.detail
    if ending.refusal is not None:
        words = ending.start_error or ""
        return _REFUSALS[ending.refusal], None, ending.detail or words[:EVIDENCE_CHARS]
    if ending.start_error is not None:
        rule, words = _unstarted(ending.start_error)
        return rule, None, words[:EVIDENCE_CHARS]
    if ending.exit_code == 0:
        return _SUCCEEDED, None, ending.detail
    return *_failure(ending), ending.detail


def blames_job(start_error: str) -> bool:
    """Whether a container can't be started because of its job or image, so that it never will."""
    rule, _words = _unstarted(start_error)
    return rule.fault is Fault.USER


def _unstarted(start_error: str) -> tuple[_Rule, str]:
    for pattern, rule in _STARTS:
        if (found := pattern.search(start_error[:LINE_CHARS])) is not None:
            return rule, start_error[found.start() :]
    return _REFUSALS[Refusal.LAUNCH_FAILED], start_error


def _failure(ending: Ending) -> tuple[_Rule, str | None]:
    last = next((line for line in reversed(ending.log_tail) if line.strip()), None)
    if ending.oom is Oom.CERTAIN:
        return _OOM, last
    number = _signal_number(ending)
    if ending.oom is Oom.SUSPECTED and number == signals.SIGKILL:
        return _OOM_SUSPECTED, last
    recent = ending.log_tail[: -EVIDENCE_LINES - 1 : -1]
    for line in recent:
        for pattern, rule in _LINES:
            if pattern.search(line[:LINE_CHARS]):
                return rule, line
    if number in _SIGNALS:
        return _SIGNALS[number], last
    if ending.exit_code == 127:
        return _NOT_FOUND, _line_with(ending, "not found") or last
    if ending.exit_code == 126:
        return _NOT_EXECUTABLE, last
    return _FAILED, next((line for line in recent if _PYTHON_ERROR.match(line[:LINE_CHARS])), last)


def _signal_number(ending: Ending) -> int:
    """Of the pod's process itself, or of the command whose death its shell passed on."""
    if ending.signal is not None:
        return ending.signal
    return max(0, (ending.exit_code or 0) - 128)


def _line_with(ending: Ending, text: str) -> str | None:
    return next((line for line in reversed(ending.log_tail) if text in line), None)


def _symptom(ending: Ending) -> str:
    if ending.loss is not None:
        return "No exit status was recorded."
    if ending.signal is not None:
        return f"Killed by {_name(ending.signal)}."
    if ending.exit_code is None:
        return "No process of the pod was ever run."
    number = _signal_number(ending)
    if number in _SIGNALS:
        return f"Exit code {ending.exit_code}: a command died of {_name(number)}."
    return f"Exit code {ending.exit_code}."


def _name(number: int) -> str:
    """Most real-time signals have no name of their own."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _outcome(ending: Ending, rule: _Rule) -> str:
    if rule is _SUCCEEDED:
        return "The pod succeeded."
    if ending.stop_reason is not None:
        how = "was killed when its grace was over" if ending.forced else "stopped in its grace"
        return (
            f"The pod {how}." if ending.exit_code is not None or ending.signal else "It never ran."
        )
    if ending.refusal is not None or ending.start_error is not None:
        return "The pod never ran."
    return "The pod failed."
