"""Finds the Scheduler that leads among its replicas. Only the leader answers questions: a standby
answers 421. REST asks the address that led last; the others only where that one fails.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import httpx2
import structlog
from muster.address_guard import Resolve, addresses_of, pinned, public_authorities
from muster.errors import Transient

_log = structlog.get_logger()

STANDBY = 421

NONE_LEADS = (
    "No Scheduler leads at the moment; a standby takes over within seconds. Try again later."
)

Query = Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class Question:
    """What the leader is asked; with a ``text`` it is a POST. All questions only read."""

    path: str
    headers: Mapping[str, str]
    query: Query | None = None
    text: bytes | None = None
    timeout: httpx2.Timeout = field(default_factory=lambda: httpx2.Timeout(None))


@dataclass(frozen=True, slots=True)
class Replica:
    """A Scheduler's URL, and one address of its host."""

    url: str
    address: str


class Leader:
    """Asks the leader behind these URLs. ``connect_s`` limits a look-up of a name."""

    def __init__(self, urls: Sequence[str], resolve: Resolve, connect_s: float) -> None:
        self._urls = urls
        self._resolve = resolve
        self._connect_s = connect_s
        self._client = httpx2.AsyncClient(
            follow_redirects=False, trust_env=False, verify=public_authorities()
        )
        self._replicas: list[Replica] = []
        """The one that led last is first, one that failed is last."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def asked(self, question: Question) -> AsyncIterator[httpx2.Response]:
        """The leader's answer as it comes; the caller limits the time.

        Raises Transient where no replica leads, httpx2.TransportError where none can be reached.
        """
        answer = await self._answer(question)
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _answer(self, question: Question) -> httpx2.Response:
        failure: Exception = httpx2.ConnectError("no host's name can be resolved")
        async with aclosing(self._candidates()) as candidates:
            async for replica in candidates:
                try:
                    answer = await self._ask(replica, question)
                except httpx2.TransportError as error:
                    self._put_last(replica)
                    failure = failure if isinstance(failure, Transient) else error
                    _log.info("a scheduler can't be reached", **_shown(replica), error=repr(error))
                    continue
                except asyncio.CancelledError:  # the caller's time is over
                    self._put_last(replica)
                    raise
                if answer.status_code != STANDBY:
                    self._put_first(replica)
                    return answer
                await answer.aclose()
                failure = Transient(NONE_LEADS)
        raise failure

    async def _candidates(self) -> AsyncGenerator[Replica]:
        """The one that led last; then all others, by the addresses that the names have now."""
        first = self._replicas[:1]
        for replica in first:
            yield replica
        found = await asyncio.gather(*map(self._look_up, self._urls))
        present = [replica for replicas in found for replica in replicas]
        known = [replica for replica in self._replicas if replica in present]
        self._replicas = known + [replica for replica in present if replica not in known]
        for replica in tuple(self._replicas):
            if replica not in first:
                yield replica

    async def _look_up(self, url: str) -> list[Replica]:
        """Those at the name's addresses; those that were there last if it can't be resolved."""
        try:
            found = await addresses_of(httpx2.URL(url), self._resolve, self._connect_s)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            _log.warning("the scheduler's name can't be looked up", url=url, error=repr(error))
            return [replica for replica in self._replicas if replica.url == url]
        return [Replica(url, address) for address in found]

    async def _ask(self, replica: Replica, question: Question) -> httpx2.Response:
        request = self._client.build_request(
            "GET" if question.text is None else "POST",
            replica.url + question.path,
            params=question.query,
            content=question.text,
            headers=question.headers,
            timeout=question.timeout,
        )
        return await self._client.send(pinned(request, replica.address), stream=True)

    def _put_first(self, replica: Replica) -> None:
        if self._replicas[:1] != [replica]:
            _log.info("this scheduler leads", **_shown(replica))
            self._replicas = [replica, *(each for each in self._replicas if each != replica)]

    def _put_last(self, replica: Replica) -> None:
        if replica in self._replicas:
            self._replicas = [*(each for each in self._replicas if each != replica), replica]


def _shown(replica: Replica) -> dict[str, str]:
    return {"url": replica.url, "address": replica.address}
