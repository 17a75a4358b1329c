"""Runs one container of the kubelet double and outlives it, as containerd's shim does.

`container_shim.py DIRECTORY` reads `container.json` there. It writes `running.json` when the
command runs and `ended.json` when it has ended. On SIGUSR1 it opens its log anew, for rotation. It
needs root and the standard library only.

A container has mounts of its own. It has process ids of its own too, unless it shares the
machine's: when its first process ends, the kernel kills the others. It has the machine's network,
and cgroups whose path holds the pod's uid.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import stat
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PART_BYTES = 16 * 1024
"""containerd cuts longer lines into parts."""
CHUNK_BYTES = 64 * 1024
SPECIFICATION, RUNNING, ENDED = "container.json", "running.json", "ended.json"
CGROUPS = Path("/sys/fs/cgroup")
OWN = ("proc", "dev")
"""Directories that every container gets, whatever its image has."""

_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000
_DROP_CAPABILITY = 24
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mount:
    """A file or directory of the machine that appears at `target`."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What to run, and where."""

    argv: list[str]
    environment: dict[str, str]
    directory: str
    uid: int
    gid: int
    root: str
    read_only_root: bool
    mounts: list[Mount]
    log: str
    cgroup: str
    memory_bytes: int | None
    capabilities: list[int] | None = None
    """All that may be had; None: all of the machine's root."""
    host_pids: bool = False

    def write(self, directory: Path) -> None:
        """To where the shim reads it."""
        write_json(directory / SPECIFICATION, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "Container":
        """What the double wrote."""
        given = json.loads((directory / SPECIFICATION).read_text())
        return cls(**{**given, "mounts": [Mount(**mount) for mount in given["mounts"]]})


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 as Go writes it: without zeros at the end."""
    seconds, rest = divmod(nanoseconds, 10**9)
    day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{day}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


def start_ticks(pid: int) -> int | None:
    """Tells a process from a later one with the same id; None where there is none or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def main(home: Path) -> None:
    """The whole life of a container."""
    if os.fork() != 0:
        os._exit(0)  # Nobody is its parent.
    container = Container.read(home)
    log = Log(Path(container.log))
    signal.signal(signal.SIGUSR1, lambda *_: log.reopen())
    groups = make_groups(container)
    failure, outputs, pid = fork(home, container, groups)
    began = time.time_ns()
    problem = b"".join(iter(lambda: os.read(failure, CHUNK_BYTES), b"")).decode()
    if not problem:
        me = {"shim": os.getpid(), "shim_ticks": start_ticks(os.getpid())}
        write_json(home / RUNNING, {"pid": pid, "started_at": began, **me})
    os.close(1)  # The kubelet waits for this.
    log.copy(outputs)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    is_oom = bool(oom_kills(groups))
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
    ended: dict[str, Any] = {"code": code if code >= 0 else 128 - code, "reason": "", "message": ""}
    if problem:
        ended |= {"code": 128, "reason": "StartError", "message": problem}
    elif is_oom:
        ended |= {"reason": "OOMKilled"}
    ended |= {"started_at": 0 if problem else began, "finished_at": time.time_ns()}
    write_json(home / ENDED, ended)


class Log:
    """A log file in the format of the container runtime interface."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def reopen(self) -> None:
        """The descriptor keeps its number: a signal may come amid a write."""
        fresh = self._open()
        os.dup2(fresh, self._file)
        os.close(fresh)

    def copy(self, outputs: dict[int, str]) -> None:
        """All that comes, to its end."""
        rest = dict.fromkeys(outputs, b"")
        with selectors.DefaultSelector() as ready:
            for output in outputs:
                ready.register(output, selectors.EVENT_READ)
            while ready.get_map():
                for key, _ in ready.select():
                    chunk = os.read(key.fd, CHUNK_BYTES)
                    lines, rest[key.fd] = split(rest[key.fd] + chunk, is_end=not chunk)
                    self._write(outputs[key.fd], lines)
                    if not chunk:
                        ready.unregister(key.fd)

    def _write(self, stream: str, lines: Iterable[tuple[str, bytes]]) -> None:
        data = b"".join(
            f"{timestamp(time.time_ns())} {stream} {tag} ".encode() + text + b"\n"
            for tag, text in lines
        )
        while data:
            data = data[os.write(self._file, data) :]


def split(data: bytes, *, is_end: bool) -> tuple[list[tuple[str, bytes]], bytes]:
    """Full lines and parts, with what is left; a last line without its end stays a part."""
    *lines, rest = data.split(b"\n")
    found = []
    for line in lines:
        while len(line) > PART_BYTES:
            found.append(("P", line[:PART_BYTES]))
            line = line[PART_BYTES:]
        found.append(("F", line))
    while len(rest) > PART_BYTES or (is_end and rest):
        found.append(("P", rest[:PART_BYTES]))
        rest = rest[PART_BYTES:]
    return found, rest


def make_groups(container: Container) -> list[Path]:
    """Version 1 has a tree for each controller, version 2 one for all."""
    trees = [CGROUPS / name for name in ("systemd", "memory", "pids")]
    if (CGROUPS / "cgroup.controllers").exists():
        trees = [CGROUPS]
    groups = []
    for tree in trees:
        group = tree / container.cgroup
        with contextlib.suppress(OSError):
            group.mkdir(parents=True, exist_ok=True)
            groups.append(group)
        if container.memory_bytes is not None:
            for name in ("memory.limit_in_bytes", "memory.max"):
                with contextlib.suppress(OSError):
                    (group / name).write_text(str(container.memory_bytes))
    return groups


def oom_kills(groups: list[Path]) -> int:
    """How many processes the kernel killed for want of memory."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (group / name).read_text().splitlines())
                return int(counts["oom_kill"])
    return 0


def fork(home: Path, container: Container, groups: list[Path]) -> tuple[int, dict[int, str], int]:
    """Start the container's first process; its failure to become the command is a text."""
    out, to_out = os.pipe()
    error, to_error = os.pipe()
    failure, to_failure = os.pipe()
    if not container.host_pids:
        _checked(_libc.unshare(_NEW_PIDS))
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for group in groups:
                (group / "cgroup.procs").write_text("0")
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(to_out, 1)
            os.dup2(to_error, 2)
            become(home, container)
        except BaseException as failed:
            os.write(to_failure, str(failed).encode() or b"failed")
        finally:
            os._exit(128)
    for end in (to_out, to_error, to_failure):
        os.close(end)
    return failure, {out: "stdout", error: "stderr"}, pid


def become(home: Path, container: Container) -> None:
    """Turn into the command, inside."""
    _checked(_libc.unshare(_NEW_MOUNTS))
    _mount("", "/", flags=_RECURSIVE | _PRIVATE)
    sources = [os.open(mount.source, os.O_PATH) for mount in container.mounts]
    root = home / "root"
    root.mkdir(exist_ok=True)
    _mirror(container.root, str(root), read_only=container.read_only_root, but=OWN)
    for name in OWN:
        (root / name).mkdir()
    _mount("/dev", str(root / "dev"), flags=_BIND | _RECURSIVE)
    _mount("proc", str(root / "proc"), kind="proc")
    os.chroot(root)
    os.chdir("/")
    opened = {"/"}
    for mount, source in zip(container.mounts, sources, strict=True):
        _make_point(mount.target, opened, is_directory=stat.S_ISDIR(os.fstat(source).st_mode))
        _bind(f"/proc/self/fd/{source}", mount.target, read_only=mount.read_only)
    _make_point(container.directory, opened, is_directory=True)
    if container.read_only_root:
        _mount("", "/", flags=_REMOUNT | _READ_ONLY)
    os.chdir(container.directory)
    if container.capabilities is not None:
        for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if number not in container.capabilities:
                _checked(_libc.prctl(_DROP_CAPABILITY, number))
    os.setgroups([])
    os.setgid(container.gid)
    os.setuid(container.uid)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them.
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(container.argv[0], container.argv, container.environment)  # noqa: S606


def _mirror(
    source: str, target: str, *, read_only: bool = False, but: tuple[str, ...] = ()
) -> None:
    """Cover `target` by a memory file system that shows `source`, so that points can be made in it
    without a trace on the machine.
    """
    entries = list(os.scandir(source))
    _mount("tmpfs", target, kind="tmpfs", data="mode=755")
    for entry in entries:
        if entry.name in but:
            continue
        there, here = f"{source}/{entry.name}", Path(target, entry.name)
        if entry.is_symlink():
            here.symlink_to(Path(there).readlink())
        else:
            here.mkdir() if entry.is_dir() else here.touch()
            _bind(there, str(here), read_only=read_only)


def _make_point(path: str, opened: set[str], *, is_directory: bool) -> None:
    """A place to mount at, where none is: what has to change is covered first."""
    at = Path("/")
    for part in Path(path).parts[1:]:
        here = at / part
        if not here.exists():
            if str(at) not in opened:
                hidden = os.open(at, os.O_PATH)
                _mirror(f"/proc/self/fd/{hidden}", str(at))
                os.close(hidden)
            here.mkdir() if is_directory or here != Path(path) else here.touch()
            opened.add(str(here))
        at = here.resolve()


def _bind(source: str, target: str, *, read_only: bool) -> None:
    _mount(source, target, flags=_BIND | _RECURSIVE)
    if read_only:
        _mount("", target, flags=_BIND | _REMOUNT | _READ_ONLY)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [os.fsencode(word) or None for word in (source, target, kind)]
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), target)


def _checked(result: int, subject: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
