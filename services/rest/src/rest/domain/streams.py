"""Logs as server-sent events: whole lines, each event's id the offset after it."""

from collections.abc import AsyncIterator, Iterator

LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is sent in pieces, each an event of its own."""


class LineEvents:
    """Makes events from bytes as they come. ``start`` is the offset of the first byte asked for;
    where the log begins later, a comment tells of the gap.
    """

    def __init__(self, start: int) -> None:
        self._rest = b""
        self._end = start

    def take(self, content: bytes, end: int) -> Iterator[bytes]:
        """The events of the lines that ``content`` completes; ``end``: the offset after it."""
        expected = self._end + len(self._rest)
        began = end - len(content)
        if began > expected:
            yield f": {began - expected} bytes are not kept any more\n\n".encode()
            self._rest = b""
        text = self._rest + content
        whole = text.rfind(b"\n") + 1
        if whole == 0 and len(text) > LONGEST_LINE_BYTES:
            whole = _character_boundary(text)
        self._end = end - (len(text) - whole)
        self._rest = text[whole:]
        if whole:
            yield event(text[:whole], self._end)

    def finish(self) -> Iterator[bytes]:
        """What is left when the task has ended, and the last event."""
        if self._rest:
            self._end += len(self._rest)
            yield event(self._rest, self._end)
            self._rest = b""
        yield f"event: end\nid: {self._end}\ndata: \n\n".encode()


def event(text: bytes, end: int) -> bytes:
    """One event; a carriage return would end a line of the event, so it begins a new one."""
    lines = text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    data = "".join(f"data: {line}\n" for line in lines.removesuffix("\n").split("\n"))
    return f"id: {end}\n{data}\n".encode()


def _character_boundary(text: bytes) -> int:
    """The length of ``text`` without a character that is cut at its end."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            return len(text) - back
    return len(text)


async def until_limit(pieces: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The pieces, up to ``limit`` bytes together."""
    left = limit
    async for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return
