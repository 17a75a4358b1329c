"""Control groups for one pod where they may be made: its limits, and proof of out-of-memory.

Version 2 has one group for all limits, version 1 one below each of its hierarchies. Where none can
be made the pod runs without that limit, which its exit record notes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, assert_never, get_args

from runtime_agent.supervisor.records import Oom

Limit = Literal["memory", "swap", "cpu", "processes"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
Files = dict[str, str]
"""What to write into which file of a group."""

CPU_PERIOD_US = 100_000
_ROOT = Path("/sys/fs/cgroup")
_V2_MARK = "cgroup.controllers"
_CONTROLLERS: Mapping[Limit, str] = {
    "memory": "memory",
    "swap": "memory",
    "cpu": "cpu",
    "processes": "pids",
}
_PARENT = "muster"
_LEAF = "muster-agent"
"""Controllers pass only to the children of a group without processes, so the agent moves here."""
_PREFIX = "muster-pod-"
_NAME_CHARACTERS = 100
_PROBE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Cgroups:
    """The directories that hold one pod, in the order in which they were made."""

    directories: tuple[Path, ...]

    def enter(self) -> None:
        """Moves the calling process in, which has one thread; its children are born inside.

        Version 1 moves that thread, for which the kernel need not hold up every fork of the
        machine, as it does (for some 15 ms) to move a process.
        """
        for directory in self.directories:
            if _is_v2(directory):
                (directory / "cgroup.procs").write_text(str(os.getpid()))
            else:
                (directory / "tasks").write_text("0")

    def oom(self) -> Oom | None:
        """The kills for want of memory by the groups' counters; None where no group counts.

        The kernel counts here also processes that it killed because the whole machine was out of
        memory: it is certain only where the pod had met its own limit.
        """
        for directory in self.directories:
            with contextlib.suppress(OSError, KeyError):
                kills, limits_met = _memory_events(directory)
                if kills == 0:
                    return "none"
                return "certain" if limits_met else "suspected"
        return None

    def kill_all(self) -> None:
        """Sends SIGKILL to every process inside, and lets none be forked."""
        for directory in self.directories:
            with contextlib.suppress(OSError):
                if _is_v2(directory):
                    (directory / "cgroup.kill").write_text("1")
                    return
                if (directory / "pids.max").exists():
                    (directory / "pids.max").write_text("0")
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> set[int]:
        """The processes inside now, also in groups that the pod has made."""
        found: set[int] = set()
        for directory in self.directories:
            for file in directory.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found.update(map(int, file.read_text().split()))
        return found

    def remove(self) -> None:
        """Removes the empty groups; one that is not empty stays."""
        for directory in self.directories:
            inner = [file.parent for file in directory.rglob("cgroup.procs")]
            for group in sorted(inner, key=lambda group: len(group.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()


def _is_v2(directory: Path) -> bool:
    return (directory / _V2_MARK).exists()


def _memory_events(directory: Path) -> tuple[int, int]:
    """How many processes were killed, and how often the limit was met.

    Raises OSError or KeyError where the group counts no memory.
    """
    if _is_v2(directory):
        events = _pairs(directory / "memory.events")
        return events["oom_kill"], events["oom"]
    kills = _pairs(directory / "memory.oom_control")["oom_kill"]
    return kills, int((directory / "memory.failcnt").read_text())


def _pairs(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number in lines}


def name_for(pod_directory: Path) -> str:
    """Of a pod's groups: by its directory, as agents may share a machine."""
    mark = sha256(os.fsencode(pod_directory)).hexdigest()[:12]
    return f"{_PREFIX}{pod_directory.name[:_NAME_CHARACTERS]}-{mark}"


def make(parent: Path, name: str, files: Mapping[str, str]) -> Path:
    """Makes a group and sets its limits. Raises OSError where that is not possible."""
    directory = parent / name
    _make_readable(directory)
    try:
        for file, content in files.items():
            (directory / file).write_text(content)
    except OSError:
        with contextlib.suppress(OSError):
            directory.rmdir()
        raise
    return directory


def _make_readable(group: Path) -> None:
    """Also by pods, whatever the umask: programs read their limits to size themselves."""
    if not group.exists():
        group.mkdir(exist_ok=True)
        group.chmod(0o755)


def limit(parent: Path, of: Limit, amount: int) -> Files:
    """The files that hold a group below `parent` to `amount`: bytes of memory, CPUs or processes.
    `swap` is none at all, whatever the amount.
    """
    is_v2 = _is_v2(parent)
    match of:
        case "memory":
            return {"memory.max" if is_v2 else "memory.limit_in_bytes": str(amount)}
        case "swap":
            return {"memory.swap.max": "0"}
        case "cpu" if is_v2:
            return {"cpu.max": f"{amount * CPU_PERIOD_US} {CPU_PERIOD_US}"}
        case "cpu":
            return {
                "cpu.cfs_period_us": str(CPU_PERIOD_US),
                "cpu.cfs_quota_us": str(amount * CPU_PERIOD_US),
            }
        case "processes":
            return {"pids.max": str(amount)}
        case never:
            assert_never(never)


def try_parent(parent: Path) -> None:
    """Raises OSError where groups can't be made in it."""
    (parent / "cgroup.procs").stat()  # elsewhere a limit would be a plain file
    make(parent, _probe_name(), {}).rmdir()


def usable_parents(wanted: Collection[Limit], configured: Path | None = None) -> dict[Limit, Path]:
    """Where groups with these limits can be made; a limit that can't be set is left out.

    That is below the `configured` group. Without one it is, under version 2, a group that this
    process may pass controllers to, and under version 1 its own group.
    """
    found: dict[Limit, Path] = {}
    delegated = configured
    if configured is None and (_ROOT / _V2_MARK).exists():
        with contextlib.suppress(OSError):
            delegated = _delegated_group()
    if delegated is not None and _is_v2(delegated):
        _pass_controllers(delegated, {_CONTROLLERS[of] for of in wanted})
    for of in wanted:
        parent = delegated or _own_v1_group(_CONTROLLERS[of])
        if parent is not None and _can_limit(parent, of):
            found[of] = parent
    return found


def _can_limit(parent: Path, of: Limit) -> bool:
    amount = _PROBE_BYTES if of == "memory" else 1
    try:
        make(parent, _probe_name(), limit(parent, of, amount)).rmdir()
    except OSError:
        return False
    return True


def _probe_name() -> str:
    return f"{_PREFIX}probe-{os.getpid()}"


def _delegated_group() -> Path | None:
    """The version 2 group for all pods, None where this process may make none. Raises OSError."""
    own = _ROOT / _own_groups()[""].lstrip("/")
    place = place_for_pods([*reversed(_below_root(own)), own], _is_delegated)
    if place is None:
        return None
    group, leaf = place
    if leaf is not None:
        _make_readable(leaf)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
    _make_readable(group)
    return group


def place_for_pods(
    groups: Sequence[Path], is_delegated: Callable[[Path], bool]
) -> tuple[Path, Path | None] | None:
    """The group for all pods, and the one that the agent moves to first (None: it stays).

    `groups` lead from the root of the hierarchy to the agent's own. Pods go below the first that
    is delegated: for root on the machine itself the root, for a user that of the user's service
    manager. Both leave a strange group alone. A service's own group would not do: systemd can't
    start the service again while a group in it has controllers.
    """
    top = next(filter(is_delegated, groups), None)
    if top is None:
        return None
    return top / _PARENT, top / _LEAF if top == groups[-1] else None


def _is_delegated(group: Path) -> bool:
    files = ("", "cgroup.procs", "cgroup.subtree_control")
    return all(os.access(group / file, os.W_OK) for file in files)


def _below_root(group: Path) -> list[Path]:
    return [folder for folder in group.parents if folder.is_relative_to(_ROOT)]


def _pass_controllers(group: Path, controllers: Iterable[str]) -> None:
    """Each by itself: the kernel takes all that a line names or none."""
    for folder in (*reversed(_below_root(group)), group):
        for controller in controllers:
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def sweep(parent: Path, before_s: float) -> None:
    """Removes all empty groups of pods that were made before that Unix time.

    They stay behind where supervisor and agent are both killed and the pod's directory is removed.
    The kernel keeps those that hold a process.
    """
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_mtime < before_s:
                directory.rmdir()


def _own_v1_group(controller: str) -> Path | None:
    path = _own_groups().get(controller)
    return None if path is None else _ROOT / controller / path.lstrip("/")


def _own_groups() -> dict[str, str]:
    """Controller of version 1 -> the path of this process's group; version 2 is the empty name."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found
