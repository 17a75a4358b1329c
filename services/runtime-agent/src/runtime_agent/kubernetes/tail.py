"""A container's output, from kubelet's files into the pod's own logs.

kubelet's lines are `<time> <stream> <F|P> <text>`, P where the container has not ended the line. It
rotates a file of some MiB by renaming it, and packs older ones. A reader that holds the file open
loses nothing, and one that comes back goes on where the pod's own logs end.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from runtime_agent.logreader import extent
from runtime_agent.supervisor.logs import STREAMS, PodLogs, Stream, stream_path

CHUNK_BYTES = 256 * 1024
LIVE_FILE = "0.log"
PLACE_FILE = "kubelet.place"

_log = structlog.get_logger()


@dataclass(frozen=True)
class Place:
    """The file of kubelet's that is being read, by its inode, and how many bytes of each stream
    there were in those before it.
    """

    inode: int
    before: dict[str, int]


class KubeletLog:
    """Follows one container's output. `source`: kubelet's folder of the container."""

    def __init__(self, source: Path, logs: Path, max_bytes: int) -> None:
        self._source = source
        self._logs = logs
        self._out = PodLogs(logs, max_bytes)
        self._file: BinaryIO | None = None
        self._rest = b""
        self._totals: dict[str, int] = dict.fromkeys(STREAMS, 0)
        # What is in the pod's logs already, as the agent was here before.
        self._known = {name: extent(stream_path(logs, name)).end for name in STREAMS}
        self.is_finished = False

    def step(self) -> bool:
        """Copies a piece; whether there may be more at once. Raises OSError."""
        if self.is_finished:
            return False
        if self._file is None and not self._open_first():
            return False
        assert self._file is not None
        if content := self._file.read(CHUNK_BYTES):
            self._take(content)
            return True
        return self._open_next()

    def finish(self) -> None:
        """The container has ended, and all of it was read."""
        if not self.is_finished:
            self._out.finish(time.time())
            self.close()
            self.is_finished = True

    def close(self) -> None:
        """Reading can go on in another object."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_first(self) -> bool:
        place = self._place()
        wanted = None if place is None else self._with_inode(place.inode)
        if place is not None and wanted is None and self._files():
            _log.warning("kubelet has removed a part of a pod's output", logs=str(self._logs))
            self._totals = {str(name): known for name, known in self._known.items()}
        elif place is not None:
            self._totals = dict(place.before)
        files = self._files()
        if wanted is None and not files:
            return False
        return self._use(wanted or files[0])

    def _open_next(self) -> bool:
        """The file that came after the present one; False where there is none yet."""
        assert self._file is not None
        inode = os.fstat(self._file.fileno()).st_ino
        files = self._files()
        position = next((n for n, path in enumerate(files) if _inode(path) == inode), None)
        if position == len(files) - 1 or not files:
            return False
        if content := self._file.read(CHUNK_BYTES):  # written before the file was renamed
            self._take(content)
            return True
        if position is None:
            _log.warning("kubelet has removed a part of a pod's output", logs=str(self._logs))
        return self._use(files[0 if position is None else position + 1])

    def _use(self, path: Path) -> bool:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # just renamed
            return False
        self.close()
        self._file = file
        place = {"inode": os.fstat(self._file.fileno()).st_ino, "before": self._totals}
        fresh = self._logs / f".{PLACE_FILE}"
        fresh.write_text(json.dumps(place))
        fresh.replace(self._logs / PLACE_FILE)
        return True

    def _place(self) -> Place | None:
        try:
            return Place(**json.loads((self._logs / PLACE_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _files(self) -> list[Path]:
        """The oldest first; packed ones were read while they were plain."""
        try:
            found = sorted(
                path for path in self._source.iterdir() if path.name.startswith(LIVE_FILE)
            )
        except FileNotFoundError:
            return []
        rotated = [path for path in found if path.name.startswith(f"{LIVE_FILE}.")]
        plain = [path for path in rotated if path.suffix not in (".gz", ".tmp")]
        return [*plain, *(path for path in found if path.name == LIVE_FILE)]

    def _with_inode(self, inode: int) -> Path | None:
        return next((path for path in self._files() if _inode(path) == inode), None)

    def _take(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        now_s = time.time()
        pieces: list[tuple[Stream, list[bytes]]] = []
        for line in lines:
            _stamp, stream, mark, text = (*line.split(b" ", 3), b"", b"", b"")[:4]
            name: Stream = "stderr" if stream == b"stderr" else "stdout"
            text = text if mark.startswith(b"P") else text + b"\n"
            if not pieces or pieces[-1][0] != name:
                pieces.append((name, []))
            pieces[-1][1].append(text)
        for name, texts in pieces:
            self._put(name, b"".join(texts), now_s)

    def _put(self, name: Stream, text: bytes, now_s: float) -> None:
        begin = self._totals[name]
        self._totals[name] += len(text)
        known = self._known[name] - begin
        if known < len(text):
            self._out.take(name, text[max(0, known) :], now_s)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
