"""A pod's logs: what it wrote to each stream as it is, and both together with times and marks.

Each file is bounded: at its limit it becomes `<file>.1` and a new one begins, so that twice the
limit is kept. A full disk loses lines; the log has their number once there is space again. The pod
never waits for the disk. The merged file has the line format of Kubernetes' own logs:
`<RFC 3339 time> <stream> <F or P> <text>`, P where a line was cut.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import BinaryIO, Literal

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")

LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is cut into pieces in the merged log."""
MERGED_LINES = 500
"""Lines written at once to the merged log, which makes each of them some 40 bytes longer."""


class BoundedFile:
    """An append-only file that keeps at most twice `max_bytes`, or what was appended last."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        # An agent on Kubernetes goes on here after a restart, which may have cut off a rotation.
        self._bytes_before, older = read_place(path)
        if older is not None and older == _inode(path):
            path.replace(rotated(path))
        self._size = 0
        self.dropped_lines = 0
        self._dropped_before_mark = 0

    def append(self, content: bytes) -> None:
        """Writes whole lines as far as the disk takes them; counts the others."""
        if self._dropped_before_mark:
            mark = f"[muster: {self._dropped_before_mark} lines were lost, the disk was full]\n"
            content = mark.encode() + content
        written = self._write(content)
        if written == len(content):
            self._dropped_before_mark = 0
            return
        lost = max(1, content.count(b"\n", written)) - (1 if self._dropped_before_mark else 0)
        self.dropped_lines += lost
        self._dropped_before_mark += lost

    def _write(self, content: bytes) -> int:
        """How many bytes reached the file."""
        written = 0
        try:
            if self._descriptor is None:
                self._open()
            if self._size and self._size + len(content) > self._max_bytes:
                self._rotate()
            assert self._descriptor is not None
            while written < len(content):
                count = os.write(self._descriptor, content[written:] if written else content)
                written += count
                self._size += count
        except OSError:
            pass  # counted by the caller; a broken disk is no reason for the pod to end
        return written

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        before = self._bytes_before + self._size
        inode = self._path.stat().st_ino
        fresh = self._path.with_name(f".{self._path.name}")
        with fresh.open("w") as file:
            file.write(f"{before} {inode}")
            file.flush()
            os.fsync(file.fileno())  # a power cut leaves no empty one
        fresh.replace(place_path(self._path))
        self._path.replace(rotated(self._path))
        self._bytes_before = before
        self._open()

    def give_back_space(self) -> None:
        """Removes the older half, for a record that matters more."""
        rotated(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """The file may be appended to again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def open_log(path: Path) -> BinaryIO:
    """Opens a log to be read. Raises OSError where it is a link, which only a pod can have made."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def rotated(path: Path) -> Path:
    """Where the older half of a log lies."""
    return path.with_name(path.name + ".1")


def place_path(path: Path) -> Path:
    """Holds two numbers once a log was rotated: how many bytes the pod wrote before the present
    file begins, and the inode of the file that has just become the older half.
    """
    return path.with_name(path.name + ".place")


def read_place(path: Path) -> tuple[int, int | None]:
    """The numbers at `place_path`; 0 and None for a log that was never rotated."""
    try:
        with open_log(place_path(path)) as file:
            before, inode = file.read().split()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return 0, None
        raise
    return int(before), int(inode)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def stream_path(directory: Path, name: Literal["stdout", "stderr", "all"]) -> Path:
    """Where a log lies inside of a pod's log directory."""
    return directory / f"{name}.log"


class PodLogs:
    """The three files of one pod."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._streams = {
            name: BoundedFile(stream_path(directory, name), max_bytes) for name in STREAMS
        }
        self._merged = BoundedFile(stream_path(directory, "all"), max_bytes)
        self._unfinished: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self._second = -1
        self._second_text = ""

    def take(self, stream: Stream, content: bytes, now_s: float) -> None:
        """A piece as it came out of the pod's pipe at `now_s` (Unix time)."""
        self._streams[stream].append(content)
        text = self._unfinished[stream] + content
        *lines, rest = text.split(b"\n")
        if not lines and len(rest) <= LONGEST_LINE_BYTES:
            self._unfinished[stream] = rest
            return
        stamp = self._stamp(stream, now_s)
        pieces: list[bytes] = []
        for count, line in enumerate(lines, 1):
            pieces += (stamp, b"F ", _cut(line, stamp, pieces), b"\n")
            if count % MERGED_LINES == 0:
                self._merged.append(b"".join(pieces))
                pieces.clear()
        self._unfinished[stream] = _cut(rest, stamp, pieces)
        self._merged.append(b"".join(pieces))

    def _stamp(self, stream: Stream, now_s: float) -> bytes:
        second = int(now_s)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        micros = int((now_s - second) * 1_000_000)
        return f"{self._second_text}.{micros:06d}Z {stream} ".encode()

    def finish(self, now_s: float) -> None:
        """Writes lines that never got their end, and closes."""
        for stream in STREAMS:
            if rest := self._unfinished[stream]:
                self._merged.append(self._stamp(stream, now_s) + b"F " + rest + b"\n")
                self._unfinished[stream] = b""
        for file in self._files():
            file.close()

    def give_back_space(self) -> None:
        """Removes the older halves of all files."""
        for file in self._files():
            file.give_back_space()

    @property
    def dropped_lines(self) -> int:
        """Lines that the disk did not take, of the merged log."""
        return self._merged.dropped_lines

    def _files(self) -> list[BoundedFile]:
        return [*self._streams.values(), self._merged]


def _cut(line: bytes, stamp: bytes, pieces: list[bytes]) -> bytes:
    """Puts all of a too long line but its tail into `pieces`; gives the tail."""
    while len(line) > LONGEST_LINE_BYTES:
        pieces += (stamp, b"P ", line[:LONGEST_LINE_BYTES], b"\n")
        line = line[LONGEST_LINE_BYTES:]
    return line
