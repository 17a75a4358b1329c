"""Pods as processes of this machine, each under a supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog
from muster.contracts.pods import PodRun
from muster.errors import Broken
from muster.settings import names_in

from runtime_agent.confinement import Confinement
from runtime_agent.counters import filled, of_groups, of_processes
from runtime_agent.devices import Devices, capacity
from runtime_agent.domain.ending import AGENT_RESET, Ending, Loss, Oom, Refusal, unstarted
from runtime_agent.domain.environment import Place, of_user, task_environment
from runtime_agent.domain.pods import Pod, Stopping
from runtime_agent.domain.report import Offer
from runtime_agent.domain.storages import folder_of, why_no_folders
from runtime_agent.domain.usage import TaskUsage
from runtime_agent.fork_server import ForkServer
from runtime_agent.logreader import last_lines
from runtime_agent.pods import Phase, PodDirectories, never_ran
from runtime_agent.runner import Seen
from runtime_agent.secrets_key import SecretsKey
from runtime_agent.settings import MEBIBYTE, AgentSettings
from runtime_agent.supervisor import cgroup, proc
from runtime_agent.supervisor.records import ExitRecord, Mount, PodSpec, StopRequest

END_NOW_S = 60.0
"""A pod that the journal does not know has ended by then; later its supervisor is killed too."""

_log = structlog.get_logger()


@dataclass
class _Attempt:
    """How often, and when last (monotonic), a supervisor was asked for; what hindered it."""

    count: int = 0
    at_s: float = 0.0
    error: str = ""


@dataclass
class SupervisedPods:
    """Real processes. `doorbell` is rung by supervisors; `confinement` sets how pods are limited to
    their resources and separated from other users; `secrets_key` opens their secrets.
    """

    settings: AgentSettings
    directories: PodDirectories
    fork_server: ForkServer
    devices: Devices
    doorbell: Path
    confinement: Confinement
    secrets_key: SecretsKey
    _attempts: dict[str, _Attempt] = field(default_factory=dict)
    _kill_at_s: dict[str, float] = field(default_factory=dict)
    _ending_since_s: dict[str, float] = field(default_factory=dict)
    _renewed_s: float = 0.0

    def launch(self, pod: Pod) -> None:
        """Prepare the directory and ask the fork server; once asked, looks see to the rest."""
        if pod.pod not in self._attempts and self._why_no_storages(pod) is None:
            self._attempt(pod)

    def _attempt(self, pod: Pod) -> None:
        assert pod.run is not None
        attempt = self._attempts.setdefault(pod.pod, _Attempt())
        attempt.count += 1
        attempt.at_s = time.monotonic()
        try:
            self._prepare(pod, pod.run)
            self.fork_server.start(self.directories.path(pod.pod))
        except OSError as error:
            attempt.error = str(error)
            raise

    def _prepare(self, pod: Pod, run: PodRun) -> None:
        names = self.devices.names
        if gone := set(run.gpus) - names.keys():  # a MIG device that was taken away meanwhile
            raise OSError(f"the node no longer has GPU {min(gone)}")
        work = str(self.directories.work_path(pod.pod))
        uid = self._uid(run)
        inherited = _inherited(self.settings, os.environ)
        place = Place(
            pod=pod.pod,
            job=pod.job,
            node=self.settings.node,
            address=self.settings.address,
            work_dir=work,
            simulated_gpus=self.devices.simulated,
            gpu_names=names,
            inherited=inherited if uid is None else of_user(inherited, run.user, work),
        )
        limits = self._limits(run)
        spec = PodSpec(
            name=pod.pod,
            environment=task_environment(run, place),
            cgroups=limits,
            default_grace_s=self.settings.grace_s,
            log_max_bytes=self.settings.log_max_bytes,
            agent_doorbell=str(self.doorbell),
            uid=uid,
            exposed=list(map(str, self.confinement.task_folders)),
            mounts=[
                asdict(Mount(str(folder_of(each)), each.mount_path, each.read_only, each.is_own))
                for each in run.mounts
            ],
            user_processes=self._user_processes(uid),
        )
        self.directories.prepare(spec, self.secrets_key.open(pod).command)

    def _why_no_storages(self, pod: Pod) -> str | None:
        assert pod.run is not None
        folders = self.settings.storage_folders()
        return why_no_folders(pod.run, folders, self.confinement.single_user)

    def _uid(self, run: PodRun) -> int | None:
        """Raises OSError where the user has none."""
        if self.confinement.single_user is not None:
            return None
        if run.user_number == 0:
            raise OSError(
                f"the request has no number of the user {run.user}, so its sender is older than"
                " this agent: upgrade REST and the Launcher, then submit the job again"
            )
        if not 0 < run.user_number <= self.settings.task_uid_count:
            raise OSError(
                f"the user {run.user} has the number {run.user_number}, and uids are there for 1 to"
                f" {self.settings.task_uid_count}: set MUSTER_TASK_UID_COUNT"
            )
        return self.settings.task_uid_first + run.user_number

    def _user_processes(self, uid: int | None) -> int:
        """Without a uid of their own the limit would count the processes of everything else."""
        is_limited = "processes" in self.confinement.parents or uid is None
        return 0 if is_limited else self.settings.pod_processes

    def _limits(self, run: PodRun) -> dict[str, dict[str, str]]:
        amounts: Mapping[cgroup.Limit, int] = {
            "memory": run.memory_mb * MEBIBYTE,
            "swap": run.memory_mb,
            "cpu": run.cpu,
            "processes": self.settings.pod_processes,
        }
        found: dict[str, dict[str, str]] = {}
        for of, parent in self.confinement.parents.items():
            if amount := amounts[of]:
                files = cgroup.limit(parent, of, amount)
                found.setdefault(str(parent), {}).update(files)
        return found

    def stop(self, name: str, stopping: Stopping) -> None:
        """Leave the request; a pod that never started is sealed."""
        seen = self.directories.observe(name)
        if seen.phase in (Phase.ABSENT, Phase.EXITED):
            return
        # First, so that a supervisor that can't be asked is killed as well.
        due = time.monotonic() + stopping.grace_s + self.settings.supervisor_patience_s
        self._kill_at_s[name] = min(due, self._kill_at_s.get(name, due))
        self.directories.ask_to_stop(name, stopping.reason, stopping.grace_s)
        self.directories.seal(name, never_ran(stopping.reason))

    def look(self, pods: Iterable[Pod]) -> list[Seen]:
        """Look at the directories; help where a supervisor is missing or no longer acts."""
        found = []
        for pod in pods:
            seen = self._look_at(pod)
            if seen is not None:
                found.append(seen)
                if seen.ending is not None:
                    self.directories.drop_command(pod.pod)
                    self._attempts.pop(pod.pod, None)
                    self._kill_at_s.pop(pod.pod, None)
        return found

    def _look_at(self, pod: Pod) -> Seen | None:
        name = pod.pod
        seen = self.directories.observe(name)
        started_at_s = None if seen.start is None else seen.start.started_at_s
        match seen.phase:
            case Phase.EXITED:
                assert seen.exit is not None
                ending = self._ending(name, seen.exit)
                return Seen(name, started_at_s, seen.exit.ended_at_s, ending)
            case Phase.REBOOTED:
                return Seen(name, started_at_s, time.time(), Ending(loss=Loss.REBOOT))
            case Phase.SUPERVISOR_LOST:
                if self.directories.kill_leftovers(name, seen.start):
                    return None  # the next look checks whether they are gone
                return Seen(name, started_at_s, time.time(), Ending(loss=Loss.SUPERVISOR))
            case Phase.RUNNING | Phase.STARTING:
                self._see_to_stop(pod, seen.stop)
                if started_at_s is None:
                    return None
                saved_at_s = self.directories.checkpointed_at_s(name)
                return Seen(name, started_at_s, checkpointed_at_s=saved_at_s)
            case Phase.PREPARED | Phase.ABSENT:
                return self._not_started(pod, seen.phase)

    def _see_to_stop(self, pod: Pod, asked: StopRequest | None) -> None:
        """Asks again where the disk did not take it; kills a supervisor that does not act."""
        name = pod.pod
        due = self._kill_at_s.get(name)
        if due is not None and time.monotonic() >= due:
            _log.warning("a supervisor does not stop its pod and is killed", pod=name)
            self.directories.kill_supervisor(name)
        if pod.stop is not None:
            wanted = StopRequest(pod.stop.reason, pod.stop.grace_s)
            if asked != wanted or due is None:
                self.stop(name, pod.stop)

    def _not_started(self, pod: Pod, phase: Phase) -> Seen | None:
        if pod.started_at is not None:
            return Seen(pod.pod, None, time.time(), Ending(loss=Loss.DIRECTORY))
        if pod.stop is not None and phase is Phase.ABSENT:
            return Seen(pod.pod, None, time.time(), unstarted(pod.stop.reason))
        if pod.stop is not None:
            self.stop(pod.pod, pod.stop)
            return None
        if phase is Phase.ABSENT and (why := self._why_no_storages(pod)) is not None:
            ending = Ending(refusal=Refusal.NO_STORAGE, detail=why)
            return Seen(pod.pod, None, time.time(), ending)
        attempt = self._attempts.get(pod.pod, _Attempt())
        if time.monotonic() - attempt.at_s < self.settings.launch_timeout_s and attempt.count:
            return None
        if attempt.count < self.settings.launch_attempts:
            self._launch_again(pod, attempt)
            return None
        error = f"no supervisor came up in {attempt.count} attempts"
        error = f"{error}: {attempt.error}" if attempt.error else error
        if phase is Phase.ABSENT or self.directories.seal(
            pod.pod, ExitRecord(ran=False, start_error=error, ended_at_s=time.time())
        ):
            return Seen(pod.pod, None, time.time(), Ending(start_error=error))
        return None

    def _launch_again(self, pod: Pod, attempt: _Attempt) -> None:
        now_s = time.monotonic()
        if attempt.count and now_s - self._renewed_s > self.settings.launch_timeout_s:
            self._renewed_s = now_s
            self.fork_server.close()  # one that hangs is replaced
        try:
            self._attempt(pod)
        except OSError as error:
            _log.warning("a pod could not be launched", pod=pod.pod, error=str(error))

    def _ending(self, name: str, record: ExitRecord) -> Ending:
        never = not record.ran and record.start_error is None
        return Ending(
            exit_code=record.exit_code,
            signal=record.signal,
            oom=Oom(record.oom),
            stop_reason=record.stop_reason,
            forced=record.forced,
            start_error=record.start_error,
            refusal=Refusal.NEVER_RAN if never else None,
            log_tail=last_lines(self.directories.logs_path(name)) if record.exit_code != 0 else (),
        )

    def has(self, name: str) -> bool:
        """Whether there is a directory."""
        return self.directories.observe(name).phase is not Phase.ABSENT

    def forget(self, name: str) -> None:
        """Logs and records stay until they are too old."""
        self.directories.drop_work(name)

    async def ready(self) -> None:
        """At once: directories are there."""

    def names(self) -> list[str]:
        """Every pod that has a directory."""
        return self.directories.names()

    def end_now(self, name: str, *, of_another_machine: bool) -> bool:
        """Asks once; kills when patience is over.

        Raises Broken where a pod can't be ended even so: then no other may start.
        """
        if of_another_machine:
            self.directories.disown_start(name)
        if self.directories.is_over(name):
            self.directories.drop_command(name)
            self._ending_since_s.pop(name, None)
            return True
        now_s = time.monotonic()
        waited_s = now_s - self._ending_since_s.setdefault(name, now_s)
        if waited_s == 0:
            self._ask_to_end(name)
        elif waited_s > 3 * END_NOW_S:
            raise Broken(f"the pod {name} can't be ended, not even by SIGKILL")
        elif waited_s > END_NOW_S:
            self.directories.kill_supervisor(name)
        return False

    def _ask_to_end(self, name: str) -> None:
        try:
            self.directories.ask_to_stop(name, AGENT_RESET, 0.0)
            self.directories.seal(name, never_ran(AGENT_RESET))
        except OSError as error:
            _log.error("a pod can't be asked to end: killed", pod=name, error=str(error))
            self.directories.kill_supervisor(name)

    def owns(self, pid: int) -> bool:
        """Whether a supervisor is above it."""
        return proc.is_supervised(pid)

    def usage(self, pod: Pod) -> TaskUsage:
        """By its control groups; what these do not count, by the processes below its supervisor."""
        start = self.directories.start(pod.pod)
        if start is None:
            return TaskUsage()
        used = of_groups(map(Path, start.cgroup_dirs))
        if used.cpu_s is None or used.memory is None:
            used = filled(used, of_processes(start.supervisor_pid))
        return used

    def offer(self) -> Offer:
        """The machine's, as far as settings do not say otherwise."""
        offered = capacity()
        return Offer(
            cpu=self.settings.cpu or offered.cpu,
            memory_mb=self.settings.memory_mb or offered.memory_mb,
            missing_limits=self.confinement.missing,
            single_user=self.confinement.single_user,
        )

    async def run(self) -> None:
        """Supervisors need nothing."""

    async def close(self) -> None:
        """Pods go on under their supervisors."""
        self.fork_server.close()


def _inherited(settings: AgentSettings, environment: Mapping[str, str]) -> dict[str, str]:
    names = names_in(settings.pod_environment)
    return {name: environment[name] for name in names if name in environment}
