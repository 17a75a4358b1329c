"""Reads a pod's log while its supervisor writes and rotates it.

Offsets count over all that the pod has written, also what is no longer kept. So a reader that comes
back finds its place again.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runtime_agent.supervisor.logs import open_log, read_place, rotated, stream_path

CHUNK_BYTES = 64 * 1024
TAIL_BYTES = 16 * 1024
"""How much of a log's end is searched for the line with the cause."""
LOOKS = 20
"""How often a place is looked up anew because the log was being rotated."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where what is kept begins, where the present file begins, and where the log ends."""

    first: int
    present: int
    end: int


def extent(path: Path) -> Extent:
    """What is kept of a log; all zero where nothing was written yet."""
    found = Extent(0, 0, 0)
    for _ in range(LOOKS):
        before, inode = read_place(path)
        older, present = _stat(rotated(path)), _stat(path)
        older_bytes = 0 if older is None else older.st_size
        found = Extent(
            before - older_bytes, before, before + (0 if present is None else present.st_size)
        )
        is_settled = older is None if inode is None else older is None or older.st_ino == inode
        if is_settled and read_place(path) == (before, inode):
            break
    return found


class LogReader:
    """Gives each byte from `at` on once; `at` moves on, over what is no longer kept too."""

    def __init__(self, path: Path, at: int) -> None:
        self._path = path
        self.at = max(at, extent(path).first)
        self._file: BinaryIO | None = None

    def read(self) -> bytes:
        """The next piece; empty where there is none yet."""
        for _ in range(2):
            if self._file is None and not self._open():
                return b""
            assert self._file is not None
            if chunk := self._file.read(CHUNK_BYTES):
                self.at += len(chunk)
                return chunk
            if self._is_present():
                return b""
            self.close()
        return b""

    def _open(self) -> bool:
        kept = extent(self._path)
        self.at = max(self.at, kept.first)
        is_older = self.at < kept.present
        try:
            self._file = open_log(rotated(self._path) if is_older else self._path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return False
            raise
        self._file.seek(max(0, self.at - (kept.first if is_older else kept.present)))
        return True

    def _is_present(self) -> bool:
        assert self._file is not None
        present = _stat(self._path)
        return present is None or present.st_ino == os.fstat(self._file.fileno()).st_ino

    def close(self) -> None:
        """The next read opens the file anew."""
        if self._file is not None:
            self._file.close()
            self._file = None


def last_lines(logs: Path) -> tuple[str, ...]:
    """The last lines of a pod's stderr, or of stdout where there are none."""
    return tail_lines(stream_path(logs, "stderr")) or tail_lines(stream_path(logs, "stdout"))


def tail_lines(path: Path) -> tuple[str, ...]:
    """The last whole lines of a file: a part of one could be a part of a secret. None where there
    is no file.
    """
    try:
        with open_log(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = tuple(file.read().decode(errors="replace").splitlines())
            return lines[1:] if size > TAIL_BYTES else lines
    except OSError:
        return ()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
