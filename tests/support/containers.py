"""The kubelet double's container runtime: starts shims, looks at them, signals, rotates logs.

All state is in files, so that whoever comes later finds the containers again.
"""

import contextlib
import gzip
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import container_shim
from container_shim import (
    CGROUPS,
    ENDED,
    RUNNING,
    SPECIFICATION,
    Container,
    start_ticks,
    timestamp,
    write_json,
)

SHIM = Path(container_shim.__file__)
LOST, LAST_WORDS = "lost", "termination-log"
END_TIMEOUT_S = 30


class Attempt:
    """One start of a container. A lost one is no longer known to the kubelet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = int(directory.name)

    def start(self, container: Container) -> None:
        """Return once the command runs or can't."""
        self.directory.mkdir(parents=True, exist_ok=True)
        container.write(self.directory)
        with (self.directory / "shim.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-I", "-S", SHIM, self.directory],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # the shim closes it
                stderr=log,
                start_new_session=True,
                check=True,
            )

    @property
    def is_lost(self) -> bool:
        return (self.directory / LOST).exists()

    def lose(self) -> None:
        """From now on the runtime does not know it."""
        (self.directory / LOST).touch()

    def is_alive(self) -> bool:
        """Whether a process of it may be left."""
        running = self._read(RUNNING)
        if running is None:
            return not self._has(ENDED) and self.directory in {found for _, found in shims()}
        return bool(start_ticks(running["shim"]) == running["shim_ticks"])

    def exit_handle(self) -> int | None:
        """A descriptor that is readable when the end is written."""
        running = self._read(RUNNING)
        with contextlib.suppress(ProcessLookupError):
            if running is not None:
                handle = os.pidfd_open(running["shim"])
                if self.is_alive():
                    return handle
                os.close(handle)
        return None

    def state(self) -> dict[str, Any] | None:
        """As in a pod's status; None: it does not run yet."""
        is_alive = self.is_alive()  # Asked first: its last act is to write how it ended.
        running, ended = self._read(RUNNING), self._read(ENDED)
        if ended is not None:
            reason = ended["reason"] or ("Error" if ended["code"] else "Completed")
            found = {"exitCode": ended["code"], "reason": reason, "containerID": self.identity()}
            for name, at in (("startedAt", "started_at"), ("finishedAt", "finished_at")):
                found[name] = seconds(ended[at])
            message = ended["message"] or self.last_words().read_text()
            return {"terminated": found | ({"message": message} if message else {})}
        if running is None:
            return None
        if is_alive:
            return {"running": {"startedAt": seconds(running["started_at"])}}
        # So containerd reports what it finds ended after a reboot.
        unknown = {"code": 255, "reason": "Unknown", "message": "", "finished_at": time.time_ns()}
        write_json(self.directory / ENDED, unknown | {"started_at": running["started_at"]})
        return self.state()

    def last_words(self) -> Path:
        """The file for its termination message, which any user may write."""
        path = self.directory / LAST_WORDS
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.chmod(0o666)
        return path

    def age_s(self) -> float:
        """How long ago it ended."""
        ended = self._read(ENDED)
        return 0.0 if ended is None else (time.time_ns() - ended["finished_at"]) / 10**9

    def identity(self) -> str:
        """The container's id."""
        parts = "-".join(self.directory.parts[-3:])
        return f"containerd://{parts}"

    def send(self, number: int) -> None:
        """To the container's first process; SIGKILL there ends all."""
        running = self._read(RUNNING)
        if running is not None and self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(running["pid"], number)

    def rotate(self, most_bytes: int, most_files: int) -> None:
        """As kubelet does it: the newest rotated file stays as it is, older ones are compressed."""
        running = self._read(RUNNING)
        log = Path(Container.read(self.directory).log)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        fresh = log.with_name(f"{log.name}.{stamp}")
        if running is None or fresh.exists() or log.stat().st_size < most_bytes:
            return
        older = sorted(log.parent.glob(f"{log.name}.*"))
        for excess in older[: max(0, len(older) - (most_files - 2))]:
            excess.unlink()
        for file in log.parent.glob(f"{log.name}.*"):
            if file.suffix != ".gz":
                with file.open("rb") as plain, gzip.open(f"{file}.gz", "wb") as packed:
                    shutil.copyfileobj(plain, packed)
                file.unlink()
        log.rename(fresh)
        os.kill(running["shim"], signal.SIGUSR1)

    def _has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        return json.loads(path.read_text()) if path.exists() else None


def seconds(nanoseconds: int) -> str:
    """A time as in Kubernetes' objects."""
    return timestamp(nanoseconds // 10**9 * 10**9)


def attempts(directory: Path) -> list[Attempt]:
    """All starts of one container, or none."""
    found = (Attempt(path.parent) for path in directory.glob(f"*/{SPECIFICATION}"))
    return sorted(found, key=lambda attempt: attempt.number)


def shims() -> Iterator[tuple[int, Path]]:
    """Each shim of this machine, with its directory."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if process.name.isdecimal() and os.fsencode(SHIM) in words:
                yield int(process.name), Path(os.fsdecode(words[-2]))


def end_shims(home: Path) -> None:
    """No process below `home` survives, and none leaves a word on how it ended."""
    ours = {pid for pid, directory in shims() if directory.is_relative_to(home)}
    for pid in ours:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    handles = []
    for pid, parent in sorted(_parents(), key=lambda found: found[0] in ours):  # Shims last.
        if parent in ours or pid in ours:
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGKILL)
    for handle in handles:
        select.select([handle], [], [], END_TIMEOUT_S)
        os.close(handle)


def _parents() -> Iterator[tuple[int, int]]:
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdecimal():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                yield int(process.name), int(fields[1])


def remove_groups(group: str) -> None:
    """A tree of cgroups without processes."""
    for tree in {CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir())}:
        for found in sorted((tree / group).glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                found.rmdir()
