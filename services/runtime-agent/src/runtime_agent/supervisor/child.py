"""Starts a pod's process so that nothing of it can run before its start is on the disk."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from runtime_agent.supervisor import proc
from runtime_agent.supervisor.cgroup import Cgroups
from runtime_agent.supervisor.isolation import Isolation
from runtime_agent.supervisor.records import COMMAND_FILE, TMP_DIR, WORK_DIR, Mount, PodSpec

SHELL = "/bin/bash"
_OPTIONS = ("-o", "errexit", "-o", "nounset", "-o", "pipefail")
_EXEC_FAILED = 127
_UMASK = 0o022
"""The usual one: the agent's own lets no other user read."""
_ASKING = {signal.SIGTERM}
_OOM_SCORE = "500"
"""The kernel takes a pod before its supervisor and before the services when memory ends."""


@dataclass
class Child:
    """A forked process that waits for its release, and the near ends of its pipes."""

    pid: int
    stdout: int
    stderr: int
    _go: int
    _failure: int

    def let_go(self) -> None:
        """Lets the pod's program begin."""
        with contextlib.suppress(BrokenPipeError):  # it failed before: `failure` has the reason
            os.write(self._go, b"!")
        os.close(self._go)

    def failure(self) -> str | None:
        """What hindered the program, or None; to be asked once the process has ended.

        It never waits: another process of the user may hold the far end.
        """
        os.set_blocking(self._failure, False)
        with os.fdopen(self._failure, "rb", buffering=0) as pipe:
            return (pipe.read() or b"").decode(errors="replace") or None

    def cancel(self) -> None:
        """Ends the process before any instruction of the pod has run."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self._go)
        os.close(self._failure)


def fork_child(directory: Path, spec: PodSpec, groups: Cgroups) -> Child:
    """The child leads its own session and waits in front of its exec; until it runs the pod's
    program, it dies with this process.
    """
    parent = os.getpid()
    go_far, go = os.pipe()
    failure, failure_far = os.pipe()
    stdout, stdout_far = os.pipe()
    stderr, stderr_far = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASKING)  # a child with our handler would ignore it
    pid = os.fork()
    if pid == 0:
        try:
            _become(directory, spec, groups, parent, (go, go_far, stdout_far, stderr_far))
        except BaseException as error:  # the parent must get every reason
            os.write(failure_far, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(_EXEC_FAILED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING)
    for far in (go_far, failure_far, stdout_far, stderr_far):
        os.close(far)
    return Child(pid, stdout, stderr, go, failure)


def _become(
    directory: Path,
    spec: PodSpec,
    groups: Cgroups,
    parent: int,
    pipes: tuple[int, int, int, int],
) -> NoReturn:
    go, go_far, stdout_far, stderr_far = pipes
    os.close(go)
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING)
    groups.enter()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(_UMASK)
    if spec.user_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (spec.user_processes, spec.user_processes))
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (stdout_far, 1), (stderr_far, 2)):
        os.dup2(descriptor, standard)
    work, command = directory / WORK_DIR, directory / COMMAND_FILE
    if spec.uid is not None:
        exposed = (work, command, *map(Path, spec.exposed))
        mounts = tuple(Mount(**each) for each in spec.mounts)
        Isolation(spec.uid, directory / TMP_DIR, exposed, mounts).enter()
    proc.die_with_parent(parent)  # last: the kernel forgets it with each change of the uid
    os.chdir(work)
    arguments = ["bash", *_OPTIONS, str(command)]
    if os.read(go_far, 1) != b"!":  # meanwhile the start is being recorded
        os._exit(_EXEC_FAILED)
    os.execve(SHELL, arguments, spec.environment)  # noqa: S606  bash is the shell
