"""The life of one pod, from the lock to the exit record.

Promises: the program runs at most once for a directory, ever; its start is on the disk before its
first instruction; when the exit record is there, no process of the pod is left. When this process
is killed it writes none, and the agent ends what is left of the pod.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from runtime_agent.supervisor import cgroup, child, lock, proc
from runtime_agent.supervisor.logs import PodLogs, Stream
from runtime_agent.supervisor.records import (
    COMMAND_FILE,
    DOORBELL_FILE,
    EXIT_FILE,
    EXIT_RESERVE_FILE,
    LOCK_FILE,
    LOGS_DIR,
    SPEC_FILE,
    START_FILE,
    STOP_FILE,
    ExitRecord,
    Oom,
    PodSpec,
    StartRecord,
    StopRequest,
    flush_directory,
    read_record,
    ring,
    write_record,
)

LOOK_AGAIN_S = 5.0
"""How long a stop request may stay unseen when its doorbell was lost."""
DRAIN_LIMIT_S = 5.0
"""How long the last output is waited for once every process of the pod is gone."""
KILL_REPEAT_S = 0.05
DISK_RETRY_S = 1.0
READ_BYTES = 64 * 1024


@dataclass
class _Ending:
    """What is known so far of the pod's end."""

    wait_status: int | None = None
    ended_at_s: float = 0.0
    stop: StopRequest | None = None
    kill_at_s: float | None = None
    forced: bool = False
    leftovers: int = 0
    notes: list[str] = field(default_factory=list)


def supervise(directory: Path) -> int:
    """Runs the pod of `directory` to its end. 0 when it did, 3 when the pod is not ours to run."""
    lock_descriptor = lock.take(directory / LOCK_FILE)
    if lock_descriptor is None:
        return 3
    if (directory / START_FILE).exists() or (directory / EXIT_FILE).exists():
        return 3
    spec = read_record(directory / SPEC_FILE, PodSpec)
    if spec is None or spec.boot_id != proc.boot_id():
        return 3
    if stop := read_record(directory / STOP_FILE, StopRequest):
        record = ExitRecord(ran=False, stop_reason=stop.reason, ended_at_s=time.time())
        _write_exit(directory, record, None)
    else:
        proc.adopt_orphans()
        _Supervision(directory, spec).run()
    if spec.agent_doorbell:
        ring(Path(spec.agent_doorbell), f"{spec.name}\n".encode())
    return 0


class _Supervision:
    """One running pod: its pipes, its logs, its end."""

    def __init__(self, directory: Path, spec: PodSpec) -> None:
        self._directory = directory
        self._spec = spec
        self._logs = PodLogs(directory / LOGS_DIR, spec.log_max_bytes)
        self._ending = _Ending()
        self._look_at_s = 0.0
        self._streams: dict[int, Stream] = {}
        self._poll = select.poll()
        self._doorbell = os.open(directory / DOORBELL_FILE, os.O_RDWR | os.O_NONBLOCK)
        self._wake, wake_far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _note_signal)
        signal.set_wakeup_fd(wake_far, warn_on_full_buffer=False)
        self._poll.register(self._doorbell, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._groups = self._make_groups()
        self._oom_kills_before = proc.oom_kills_of_machine()

    def run(self) -> None:
        """Start, watch, end, record."""
        started_at_s, started_mono = time.time(), time.monotonic()
        self._child = child.fork_child(self._directory, self._spec, self._groups)
        for descriptor, name in ((self._child.stdout, "stdout"), (self._child.stderr, "stderr")):
            os.set_blocking(descriptor, False)
            self._streams[descriptor] = "stdout" if name == "stdout" else "stderr"
            self._poll.register(descriptor, select.POLLIN)
        try:
            self._record_start(started_at_s)
        except OSError as error:
            self._child.cancel()
            start_error: str | None = f"the start could not be recorded: {error}"
        else:
            self._child.let_go()
            self._ring_agent()
            start_error = None
        self._watch()
        start_error = start_error or self._child.failure()
        self._end_leftovers()
        self._drain()
        self._read_ready(0.0)  # a shutdown that ended the pod too, just before
        self._logs.finish(time.time())
        record = self._exit_record(start_error, started_at_s, time.monotonic() - started_mono)
        self._groups.remove()
        _write_exit(self._directory, record, self._logs)

    def _make_groups(self) -> cgroup.Cgroups:
        made = []
        for parent, files in self._spec.cgroups.items():
            try:
                made.append(cgroup.make(Path(parent), cgroup.name_for(self._directory), files))
            except OSError as error:
                limits = ", ".join(files)
                self._ending.notes.append(f"no control group, so no {limits}: {error}")
        return cgroup.Cgroups(tuple(made))

    def _record_start(self, started_at_s: float) -> None:
        record = StartRecord(
            pid=self._child.pid,
            process_start_ticks=proc.start_ticks(self._child.pid) or 0,
            supervisor_pid=os.getpid(),
            boot_id=proc.boot_id(),
            started_at_s=started_at_s,
            cgroup_dirs=[str(directory) for directory in self._groups.directories],
            uid=self._spec.uid,
        )
        write_record(self._directory / START_FILE, record)
        flush_directory(self._directory.parent)

    def _ring_agent(self) -> None:
        if self._spec.agent_doorbell:
            ring(Path(self._spec.agent_doorbell), f"{self._spec.name}\n".encode())

    def _watch(self) -> None:
        """Until the pod's own process has ended."""
        while self._ending.wait_status is None:
            now = time.monotonic()
            if now >= self._look_at_s:
                self._look_at_s = now + LOOK_AGAIN_S
                self._look_for_stop()
            self._kill_when_due(now)
            self._read_ready(self._patience_s())
            self._reap()

    def _patience_s(self) -> float:
        due = min(self._look_at_s, self._ending.kill_at_s or self._look_at_s)
        return max(0.0, due - time.monotonic())

    def _read_ready(self, timeout_s: float) -> None:
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            if descriptor in self._streams:
                self._read_stream(descriptor)
            else:
                with contextlib.suppress(BlockingIOError):
                    self._heed(descriptor, os.read(descriptor, READ_BYTES))

    def _heed(self, descriptor: int, content: bytes) -> None:
        if descriptor == self._doorbell:
            self._look_at_s = 0.0
        elif set(content) - {signal.SIGCHLD} and self._ending.stop is None:
            self._begin_stop(StopRequest("supervisor-terminated", self._spec.default_grace_s))

    def _read_stream(self, descriptor: int) -> None:
        try:
            content = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if content:
            self._logs.take(self._streams[descriptor], content, time.time())
        else:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
            os.close(descriptor)

    def _look_for_stop(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            request = read_record(self._directory / STOP_FILE, StopRequest)
            if request is None and not (self._directory / SPEC_FILE).exists():
                # No process can find this pod any more, so none could ever stop it.
                request = StopRequest("directory-removed", self._spec.default_grace_s)
            if request is not None and request != self._ending.stop:
                self._begin_stop(request)

    def _kill_when_due(self, now: float) -> None:
        due = self._ending.kill_at_s
        if due is not None and now >= due:
            self._ending.forced = True
            self._signal_all(signal.SIGKILL)
            self._ending.kill_at_s = now + LOOK_AGAIN_S

    def _begin_stop(self, request: StopRequest) -> None:
        """The first request sends SIGTERM; a later one can only shorten the grace."""
        due = time.monotonic() + request.grace_s
        if self._ending.stop is None or self._ending.stop.reason == "supervisor-terminated":
            self._signal_all(signal.SIGTERM)
            self._ending.kill_at_s = due
        elif self._ending.kill_at_s is not None:
            self._ending.kill_at_s = min(self._ending.kill_at_s, due)
        self._ending.stop = request

    def _signal_all(self, number: signal.Signals) -> None:
        """Every process of the pod once: all are descendants, also those that left its session."""
        for pid in proc.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self._groups.kill_all()

    def _reap(self) -> bool:
        """Takes in ended children; False when none are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child.pid:
                self._ending.wait_status = status
                self._ending.ended_at_s = time.time()

    def _end_leftovers(self) -> None:
        """Waits as long as it takes: a pod's end means that nothing of it holds a device."""
        counted: set[int] = set()
        while self._reap():
            counted.update(proc.descendants(os.getpid()))
            self._signal_all(signal.SIGKILL)
            self._read_ready(KILL_REPEAT_S)
        self._ending.leftovers = len(counted)

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_LIMIT_S
        while self._streams and time.monotonic() < until:
            self._read_ready(KILL_REPEAT_S)

    def _exit_record(
        self, start_error: str | None, started_at_s: float, run_time_s: float
    ) -> ExitRecord:
        status = self._ending.wait_status or 0
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        ran = start_error is None
        return ExitRecord(
            ran=ran,
            exit_code=os.WEXITSTATUS(status) if ran and killed_by is None else None,
            signal=killed_by if ran else None,
            oom=self._oom(killed_by),
            stop_reason=None if self._ending.stop is None else self._ending.stop.reason,
            forced=self._ending.forced,
            start_error=start_error,
            started_at_s=started_at_s,
            ended_at_s=self._ending.ended_at_s,
            run_time_s=run_time_s,
            cpu_time_s=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=usage.ru_maxrss * 1024,
            leftovers_killed=self._ending.leftovers,
            dropped_lines=self._logs.dropped_lines,
            notes=self._ending.notes,
        )

    def _oom(self, killed_by: int | None) -> Oom:
        counted = self._groups.oom()
        if counted is not None:
            return counted
        was_killed = killed_by == signal.SIGKILL and not self._ending.forced
        if was_killed and proc.oom_kills_of_machine() > self._oom_kills_before:
            return "suspected"
        return "none"


def _note_signal(_number: int, _frame: object) -> None:
    """The number reaches the loop through the wake-up pipe."""


def _write_exit(directory: Path, record: ExitRecord, logs: PodLogs | None) -> None:
    """Writes the end, and retries while the disk refuses: in the space that is reserved for it
    where there is no other, and at last in that of older logs. The command, which may hold secrets,
    goes before.
    """
    with contextlib.suppress(OSError):  # the agent repeats it
        (directory / COMMAND_FILE).unlink(missing_ok=True)
    while True:
        try:
            write_record(directory / EXIT_FILE, record, reserve=directory / EXIT_RESERVE_FILE)
        except OSError as error:
            if error.errno == errno.ENOENT and not directory.exists():
                return  # the pod's directory was removed: no reader is left
            if logs is not None:
                logs.give_back_space()
            time.sleep(DISK_RETRY_S)
        else:
            return
