"""A network between a process and its database, which stops to carry anything without notice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Carries what goes to and from one address, until it is frozen. ``url``: through it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._open = asyncio.Event()
        self._open.set()
        self._ways: set[_Way] = set()
        self.url = ""

    def freeze(self) -> None:
        """From now on nothing goes through, and neither side is notified."""
        self._open.clear()
        self.freeze_those_open()

    def freeze_those_open(self) -> None:
        """The same, of the connections that are open now."""
        for way in self._ways:
            way.is_open.clear()

    def keep_answers(self) -> None:
        """What comes back is taken by nobody, on the connections that are open now."""
        for way in self._ways:
            way.answers.clear()

    def thaw(self) -> None:
        """What was kept goes through now."""
        self._open.set()
        for way in self._ways:
            way.is_open.set()
            way.answers.set()

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        way = _Way(self._open.is_set())
        self._ways.add(way)
        host, port = self._parts.hostname, self._parts.port
        far, there = await asyncio.open_connection(host, port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(way.carry(near, there, way.is_open))
                both.create_task(way.carry(far, back, way.is_open, way.answers))
        finally:
            self._ways.discard(way)
            for end in (there, back):
                end.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        """Carry while the block runs."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        who = self._parts.netloc.rpartition("@")[0]
        netloc = f"{who}@127.0.0.1:{port}" if who else f"127.0.0.1:{port}"
        self.url = urlunsplit(self._parts._replace(netloc=netloc))
        try:
            yield self
        finally:
            self.thaw()
            server.close()


class _Way:
    """One connection."""

    def __init__(self, is_open: bool) -> None:
        self.is_open, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()
        if is_open:
            self.is_open.set()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *gates: asyncio.Event
    ) -> None:
        """Carry what comes as long as these are open."""
        with contextlib.suppress(ConnectionError):
            piece = b" "
            while piece:
                for gate in gates:
                    await gate.wait()
                piece = await reader.read(2**16)
                for gate in gates:
                    await gate.wait()
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
