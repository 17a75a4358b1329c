"""Separates a pod from other users and from Muster, where the agent is root.

The pod's process gets the uid of its user, a `/tmp` of its own, and a mount namespace in which
every private folder on the way to its own files is hidden. Muster's secrets are hidden as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime_agent.supervisor import proc
from runtime_agent.supervisor.records import Mount

PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  replaced by the pod's own
MNT = Path("/mnt")
"""A pod with storages sees only these there, and what is exposed."""
SECRETS = Path("/run/secrets")
"""Services read their settings there; files that a container mounts are often readable by all."""
PYTHON = (Path(sys.prefix), Path(sys.base_prefix))
"""The agent's own, which every pod reaches."""
CAPABILITIES: Mapping[str, int] = {  # linux/capability.h
    "CAP_CHOWN": 0,  # to give a user the work directory
    "CAP_DAC_OVERRIDE": 1,  # to read and remove it
    "CAP_FOWNER": 3,  # to remove files in sticky folders of it
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,  # to find processes where /proc has hidepid
    "CAP_SYS_ADMIN": 21,  # to mount
}
"""What the agent must be able to do, to separate users and to see to their pods."""
CANNOT_SEPARATE = 3
"""The exit status of a trial that has found a reason; Python itself ends with 1 and 2."""
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000  # linux/mount.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "riscv64": 219, "s390x": 280}
"""The number of the system call, for which libc has no function."""
_TO_ALL = 0o001
"""A folder without this bit stops other users on their way."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Isolation:
    """How a pod is separated. `uid` is its group's number as well. `tmp` is what it sees at
    `/tmp`. It reaches `exposed` (folders and files, by paths without links) at their own paths, and
    `mounts` at theirs, below `/mnt`.
    """

    uid: int
    tmp: Path
    exposed: tuple[Path, ...]
    mounts: tuple[Mount, ...] = ()

    def enter(self) -> None:
        """Separates the calling process, which is root and has one thread. Raises OSError."""
        _leave_keyring()
        if _libc.unshare(_CLONE_NEWNS) != 0:
            raise _error("unshare(CLONE_NEWNS)")
        _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
        sources = {path: _open(path) for path in PYTHON}
        sources |= {path: _open_without_links(path) for path in self.exposed}
        storages = [(mount, _open_storage(mount, self.uid)) for mount in self.mounts]
        tmp = _open(self.tmp)
        for place in PRIVATE:
            _bind(tmp, place)
        if SECRETS.is_dir():
            _hide(SECRETS, 0o755)  # programs that look for settings may list it
        if storages:
            _hide(MNT, 0o755)
            device = MNT.stat().st_dev
        for path in sorted(sources):
            _expose(path, sources[path], self.uid)
        for mount, source in storages:
            _mount_storage(mount, source, device)
        _become(self.uid)


def attempt(uid: int) -> int:
    """Separates this process for a trial: 0, or CANNOT_SEPARATE with the reason on standard
    error.
    """
    reason = _lacking() or _unmapped(uid)
    if reason is None:
        try:
            Isolation(uid, PRIVATE[0], ()).enter()
        except OSError as error:
            reason = f"the trial to separate users failed: {error}"
        else:
            return 0
    sys.stderr.write(f"{reason}\n")
    return CANNOT_SEPARATE


def _lacking() -> str | None:
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    missing = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    return f"the agent lacks {', '.join(missing)}" if missing else None


def _unmapped(uid: int) -> str | None:
    for kind in ("uid", "gid"):
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
        if not any(first <= uid < first + count for first, count in ranges):
            return (
                f"the {kind} {uid} is not mapped in the agent's user namespace: map those of"
                " MUSTER_TASK_UID_FIRST and MUSTER_TASK_UID_COUNT"
            )
    return None


def _leave_keyring() -> None:
    """Gives this process an empty session keyring, so that a pod reaches no key of root's.

    It does so as root, for a user may have few keyrings. A kernel or a container that refuses lets
    the pod reach none either.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"keyctl has no known number on {os.uname().machine}")
    if _libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None) < 0:
        error = _error("keyctl(JOIN_SESSION_KEYRING)")
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise error


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    proc.forbid_new_privileges()


def _expose(path: Path, source: int, uid: int) -> None:
    """Makes `path` reachable: an empty file system hides the first private folder above it."""
    for folder in reversed(path.parents):
        if not folder.exists():
            break
        found = folder.stat()
        if not found.st_mode & _TO_ALL and found.st_uid != uid:
            _hide(folder, 0o711)
            break
    else:
        if path.exists():
            return
    _make_folders(path.parents)
    if Path(f"/proc/self/fd/{source}").is_dir():
        path.mkdir(exist_ok=True)
    else:
        path.touch()
    _bind(source, path)


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | flags)


def _open_without_links(path: Path, flags: int = 0) -> int:
    """A link could lead anywhere: any user who may write to a folder on the way can put one."""
    found = _open(path, flags)
    if (place := Path(f"/proc/self/fd/{found}").readlink()) != path:
        raise OSError(errno.ELOOP, f"{path} has become a link to {place}")
    return found


def _open_storage(mount: Mount, uid: int) -> int:
    """Its folder, which `is_own` makes. Those above it are the operator's, so that no user can put
    another one in its place meanwhile.
    """
    source = Path(mount.source)
    if mount.is_own:
        above = _open_without_links(source.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(source.name, 0o700, dir_fd=above)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            made = os.open(source.name, flags, dir_fd=above)
            os.fchown(made, uid, uid)
    return _open_without_links(source, os.O_DIRECTORY)


def _mount_storage(mount: Mount, source: int, device: int) -> None:
    """`device`: that of `/mnt`, which is the pod's own: nothing is made in another file system."""
    place = Path(mount.place)
    for folder in (*reversed(place.parents), place):
        if not folder.is_relative_to(MNT):
            continue
        if folder.parent != MNT.parent and folder.parent.stat().st_dev != device:
            raise OSError(errno.EEXIST, f"{place} lies in {folder.parent}, which is there already")
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)  # whatever the umask
    _mount(f"/proc/self/fd/{source}", place, None, _MS_BIND)
    flags = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV
    flags |= os.statvfs(place).f_flag & (_MS_RDONLY | _MS_NOEXEC)
    _mount(None, place, None, flags | (_MS_RDONLY if mount.read_only else 0))


def _hide(folder: Path, mode: int) -> None:
    _mount("tmpfs", folder, "tmpfs", 0, f"mode={mode:o},size=1m".encode())


def _make_folders(parents: Iterable[Path]) -> None:
    for folder in reversed(list(parents)):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o711)  # whatever the umask


def _bind(source: int, place: Path) -> None:
    _mount(f"/proc/self/fd/{source}", place, None, _MS_BIND | _MS_REC)


def _mount(
    source: str | None, place: Path, kind: str | None, flags: int, options: bytes | None = None
) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, place, kind)]
    if _libc.mount(*names, ctypes.c_ulong(flags), options) != 0:
        raise _error(f"mount at {place}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
