"""The folder of each pod on its node, with its records and logs, whatever runs the pod.

No step takes longer for a pod with more files: what a pod leaves is renamed at once and removed
later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from runtime_agent.supervisor.records import EXIT_FILE, LOGS_DIR, SPEC_FILE, WORK_DIR

DOOMED_DIR = ".old"
"""Below the root: what leaves the disk. A rename into it is all that a removal takes at once."""
REASON_BYTES = 1000
PIPE_BYTES = 64 * 1024
LONGEST_NAME = 200
"""Longer pod names are kept under their hash: file systems end at 255 bytes."""


@dataclass(frozen=True)
class Remains:
    """What a pod has left on the disk; `changed_s` (Unix): when something was last recorded."""

    name: str
    changed_s: float
    log_bytes: int
    has_work: bool


class PodFiles:
    """All pods below one root, which belongs to one agent. `has_doomed` calls for
    `remove_doomed`.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root = root.resolve()  # pods change their directory
        self._doomed = self.root / DOOMED_DIR
        self._doomed.mkdir(exist_ok=True, mode=0o700)
        self.has_doomed = asyncio.Event()

    def names(self) -> list[str]:
        """Every pod that has a directory."""
        return sorted(map(self.name_of, self.directories()))

    def directories(self) -> list[Path]:
        """Of the pods."""
        found = (each for each in self.root.iterdir() if each.is_dir())
        return [each for each in found if not each.name.startswith(".")]

    def name_of(self, directory: Path) -> str:
        """The pod's, whatever else its first record has."""
        return _name_in(directory / SPEC_FILE) or directory.name

    def path(self, name: str) -> Path:
        """Where the pod's directory is or would be. Raises ValueError for what is no pod's name."""
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} can't be the name of a pod")
        if len(name.encode()) > LONGEST_NAME:
            return self.root / sha256(name.encode()).hexdigest()
        return self.root / name

    def work_path(self, name: str) -> Path:
        """The pod's own work directory."""
        return self.path(name) / WORK_DIR

    def logs_path(self, name: str) -> Path:
        """The directory of the pod's logs."""
        return self.path(name) / LOGS_DIR

    def remove(self, name: str) -> None:
        """Removes all of the pod."""
        self._doom(self.path(name))

    def drop_logs(self, name: str) -> None:
        """Removes the pod's logs; its records stay."""
        self._doom(self.logs_path(name))

    def _doom(self, path: Path) -> None:
        if os.path.lexists(path):
            path.rename(self._doomed / uuid4().hex)
            self.has_doomed.set()

    def sweep(self) -> None:
        """Removes what a crash has left half made or half removed."""
        for entry in self.root.glob(".new-*"):
            self._doom(entry)
        self.has_doomed.set()

    async def remove_doomed(self) -> None:
        """Takes off the disk what is removed. Raises OSError, with a reason, where something stays.

        A process does it: folders may be deeper than Python can, and a stop can end it.
        """
        self.has_doomed.clear()
        if not any(self._doomed.iterdir()):
            return
        process = await asyncio.create_subprocess_exec(
            *("find", self._doomed, "-mindepth", "1", "-xdev", "-delete"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},  # pods may read it: nothing secret
        )
        assert process.stderr is not None
        try:
            reason = await process.stderr.read(REASON_BYTES)
            while await process.stderr.read(PIPE_BYTES):
                pass
            if await process.wait():
                raise OSError(reason.decode(errors="replace"))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def remains(self) -> list[Remains]:
        """Of every pod, the oldest first. It opens no lock, so any thread may ask."""
        found = []
        for name in self.names():
            directory = self.path(name)
            changed_s = max(_changed_s(directory / file) for file in (SPEC_FILE, EXIT_FILE))
            has_work = (directory / WORK_DIR).exists()
            found.append(Remains(name, changed_s, _bytes_in(directory / LOGS_DIR), has_work))
        return sorted(found, key=lambda each: each.changed_s)


def touched_at_s(path: Path) -> float | None:
    """When a file that belongs to a pod was changed last (Unix). Only a file itself counts, never
    what it leads to, and nothing of it is read.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _name_in(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _bytes_in(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_size
    return total
