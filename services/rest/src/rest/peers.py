"""What REST reads from others over HTTP and passes on: logs and figures from agents, reasons and
the queue from the Scheduler, alerts from Alerting. It changes nothing there.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import httpx2
import structlog
from muster.address_guard import AddressRefused, GuardedTransport, Resolver
from muster.addresses import is_within, networks_of
from muster.errors import Rejected, Transient
from muster.service_keys import ALERTING, SCHEDULER, agent, make_token, service_key
from pydantic import ValidationError

from rest.leader import Leader, Query, Question
from rest.metrics import RestMetrics
from rest.settings import RestSettings

_log = structlog.get_logger()

Figures = TypeVar("Figures")

MAX_PEER_BYTES = 8 * 1024 * 1024
"""Of the Scheduler's answer."""

MAX_REFUSAL_BYTES = 4096
NO_ADDRESS = "Where its agent is read is not known (yet)."
OLDER = "Its agent keeps no figures: it is of an older version."
UNREADABLE = "The answer of its agent can't be read."
LATE = "Its agent has not answered in time."
URL_SHOWN, ADDRESSES_SHOWN = 100, 3


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some of a log. ``end`` is the offset of the byte after it, counted over all that the pod has
    written.
    """

    content: bytes
    end: int


@dataclass(frozen=True, slots=True)
class AgentAt:
    """The agent of ``node``; ``log_url`` is what it reported."""

    node: str
    log_url: str


@dataclass(frozen=True, slots=True)
class LogAsk(AgentAt):
    """Which part of a log: from ``offset``, or only the last ``tail`` bytes; and on, with
    ``follow``.
    """

    pod: str
    stream: str
    offset: int = 0
    tail: int | None = None
    follow: bool = False


AS_OF = "X-As-Of"
"""The number of the Scheduler's last cycle before its answer, where that has no ``asOf``."""


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """A stretch of the Scheduler's record as it comes."""

    as_of: str | None
    content: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log as it comes: ``start`` is the offset of its first byte, ``end`` where all that there is
    ended when it was asked for.
    """

    start: int
    end: int | None
    pieces: AsyncIterator[LogPiece]


@dataclass(frozen=True, slots=True)
class Asked:
    """A service that answers questions. ``audience``: of its tokens; ``name``: in refusals."""

    audience: str
    name: str
    leader: Leader


class Peers:
    """Reads agents, the Scheduler and Alerting. Agents report their own addresses, so REST connects
    to those in the allowed networks only.
    """

    def __init__(self, settings: RestSettings, metrics: RestMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._key = settings.cluster_key.get_secret_value()
        networks = networks_of(settings.agent_networks)
        self._resolver = Resolver(settings.resolver_threads)
        self._agents = httpx2.AsyncClient(
            transport=GuardedTransport(
                self._resolver, lambda address: is_within(address, networks)
            ),
            follow_redirects=False,
            trust_env=False,
        )
        # In threads of its own: agents choose the names that the other one looks up.
        self._scheduler_resolver = Resolver(settings.resolver_threads)
        self._scheduler = self._asked(SCHEDULER, "The Scheduler", settings.scheduler_urls)
        self._alerting = self._asked(ALERTING, "Alerting", settings.alerting_urls)

    def _asked(self, audience: str, name: str, urls: Sequence[str]) -> Asked:
        connect_s = self._settings.peer_connect_s
        return Asked(audience, name, Leader(urls, self._scheduler_resolver, connect_s))

    async def close(self) -> None:
        """Give connections back."""
        await self._agents.aclose()
        await self._scheduler.leader.close()
        await self._alerting.leader.close()
        self._resolver.close()
        self._scheduler_resolver.close()

    def _token(self, audience: str, path: str) -> dict[str, str]:
        """The header that opens one path of a service; ``path`` is not quoted."""
        if not self._key:
            return {}
        key = service_key(self._key, audience)
        return {"Authorization": f"Bearer {make_token(key, audience, path, now_s=time.time())}"}

    @asynccontextmanager
    async def open_log(self, ask: LogAsk) -> AsyncIterator[OpenLog]:
        """A pod's log as its agent sends it.

        Raises Rejected where the agent has no such log or its address is not allowed, Transient
        where it can't be reached.
        """
        path = f"/logs/{ask.pod}/{ask.stream}"
        query: dict[str, str | float] = {"offset": ask.offset}
        if ask.tail is not None:
            query["tail"] = ask.tail
        if ask.follow:
            query["follow"] = 1
        # A followed log may be silent for long; the reader has its own rhythm.
        read_s = None if ask.follow else self._settings.peer_timeout_s
        async with self._agent(ask, path, query, read_s) as answer:
            if answer.status_code == 404:
                raise Rejected("NoTaskLogError", "The node has no such log (any more).")
            if answer.status_code != 200:
                raise Transient(f"The node's agent answers {answer.status_code}.")
            start = int(answer.headers.get("x-log-offset", ask.offset))
            end = answer.headers.get("x-log-end")
            yield OpenLog(start, None if end is None else int(end), _pieces(answer, start))

    async def ask_agent(self, at: AgentAt, path: str, query: Query) -> Any:
        """What a node's agent answers; None where it does not know the path: it is older. Raises as
        `open_log` does.
        """
        async with self._agent(at, path, query, self._settings.peer_timeout_s) as it:
            try:
                return await _read(f"The agent of node {at.node}", it)
            except ValueError as error:
                raise Transient(f"The answer of node {at.node} can't be read.") from error

    async def ask_agents(
        self,
        agents: Mapping[str, str | None],
        path: str,
        query: Query,
        read: Callable[[Any], Figures],
    ) -> tuple[dict[str, Figures], dict[str, str]]:
        """What the agents answer, by node, and why the others' answers are missing. ``agents``: by
        node, where its agent is read. ``read`` raises ValidationError where it can't read one.
        """
        answers: dict[str, Figures] = {}
        missing = dict.fromkeys(agents, LATE)
        places = asyncio.Semaphore(self._settings.usage_agents)

        async def ask(node: str, log_url: str | None) -> None:
            if log_url is None:
                missing[node] = NO_ADDRESS
                return
            try:
                async with places:
                    found = await self.ask_agent(AgentAt(node, log_url), path, query)
                if found is None:
                    missing[node] = OLDER
                    return
                answers[node] = read(found)
            except (Rejected, Transient) as error:
                missing[node] = str(error)
            except ValidationError:
                missing[node] = UNREADABLE
            else:
                del missing[node]

        limit_s = self._settings.usage_timeout_s
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                for node, log_url in agents.items():
                    group.create_task(ask(node, log_url))
        except TimeoutError:
            pass  # the answer names who is missing
        return answers, missing

    @asynccontextmanager
    async def _agent(
        self, at: AgentAt, path: str, query: Query, read_s: float | None
    ) -> AsyncIterator[httpx2.Response]:
        """An agent's answer as it comes."""
        url, timeout = _base(at) + quote(path), self._timeout(read_s)
        token = self._token(agent(at.node), path)
        try:
            async with self._agents.stream(
                "GET", url, params=query, timeout=timeout, headers=token
            ) as answer:
                if answer.status_code == 401:
                    raise self._not_let_in(f"The agent of node {at.node}", await _start_of(answer))
                yield answer
        except AddressRefused as error:
            self._metrics.peer_refused.inc()
            _log.warning("an agent's address is not allowed", node=at.node, url=url[:URL_SHOWN])
            raise Rejected("AgentAddressError", _outside(at, error.addresses)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            self._metrics.peer_failures.labels("agent").inc()
            _log.warning("an agent can't be read", url=url, error=repr(error))
            message = f"Node {at.node} does not answer; try again later."
            raise Transient(message) from error

    @asynccontextmanager
    async def open_record(self, query: dict[str, str]) -> AsyncIterator[OpenRecord]:
        """A stretch of the Scheduler's record as it sends it.

        Raises Rejected where it has none of that time or there is none to ask, Transient where it
        can't be reached.
        """
        self._must_have_scheduler()
        limit_s = self._settings.peer_timeout_s
        question = self._question(SCHEDULER, "/export", limit_s, query)
        async with AsyncExitStack() as stack:
            with self._reading(self._scheduler, question):
                async with asyncio.timeout(limit_s):
                    leader = self._scheduler.leader
                    answer = await stack.enter_async_context(leader.asked(question))
                if answer.status_code == 401:
                    raise self._not_let_in("The Scheduler", await _start_of(answer))
                code = RECORD_REFUSALS.get(answer.status_code)
                if code is not None:
                    raise Rejected(code, _error_text(await answer.aread()))
                if answer.status_code != 200:
                    raise Transient(f"The Scheduler answers {answer.status_code}; try again later.")
            yield OpenRecord(answer.headers.get(AS_OF), _content(answer))

    def _must_have_scheduler(self) -> None:
        """Raises Rejected where there is none to ask."""
        if not self._settings.scheduler_urls:
            message = "The Scheduler can't be read: MUSTER_SCHEDULER_URL is not set."
            raise Rejected("NotConfiguredError", message)

    async def must_ask_scheduler(self, path: str, query: Query) -> Any:
        """The same as `ask_scheduler`; but raises Rejected where there is none to ask."""
        self._must_have_scheduler()
        return await self.ask_scheduler(path, query)

    async def ask_scheduler(self, path: str, query: Query | None = None) -> Any:
        """The Scheduler's answer as it is; None where it knows nothing of this, or there is none to
        ask. Raises Transient where it does not answer.
        """
        if not self._settings.scheduler_urls:
            return None
        return await self._ask(self._scheduler, path, query)

    async def ask_alerting(self, path: str, query: Query | None = None) -> Any:
        """Alerting's answer as it is; None where it knows nothing of this. Raises Transient where
        it does not answer, Rejected where there is none to ask.
        """
        self._must_have_alerting()
        return await self._ask(self._alerting, path, query)

    async def ask_alerting_about(
        self, path: str, text: bytes, within_s: float, query: Query | None = None
    ) -> Any:
        """Its answer, within ``within_s`` seconds, to a question that is a text. Raises as
        `ask_alerting` does.
        """
        self._must_have_alerting()
        question = self._question(ALERTING, path, within_s, query, text)
        return await self._answer(self._alerting, question, within_s)

    def _must_have_alerting(self) -> None:
        if not self._settings.alerting_urls:
            message = "Alerting can't be read: MUSTER_ALERTING_URL is not set."
            raise Rejected("NotConfiguredError", message)

    async def _ask(self, asked: Asked, path: str, query: Query | None) -> Any:
        limit_s = self._settings.peer_timeout_s
        question = self._question(asked.audience, path, limit_s, query)
        return await self._answer(asked, question, limit_s)

    async def ask_scheduler_about(self, path: str, text: bytes, within_s: float) -> Any:
        """Its answer, within ``within_s`` seconds, to a question that is a text. Raises Transient
        where it does not answer, Rejected where there is none to ask.
        """
        self._must_have_scheduler()
        question = self._question(SCHEDULER, path, within_s, text=text)
        return await self._answer(self._scheduler, question, within_s)

    def _question(
        self,
        audience: str,
        path: str,
        read_s: float,
        query: Query | None = None,
        text: bytes | None = None,
    ) -> Question:
        token = self._token(audience, unquote(path))
        return Question(path, token, query, text, self._timeout(read_s))

    def _timeout(self, read_s: float | None) -> httpx2.Timeout:
        limit_s = self._settings.peer_timeout_s
        return httpx2.Timeout(limit_s, connect=self._settings.peer_connect_s, read=read_s)

    def _not_let_in(self, who: str, body: bytes) -> Transient:
        """What an operator has to fix: a key or a clock."""
        why = _error_text(body) if self._key else "REST has no MUSTER_CLUSTER_KEY."
        return Transient(f"{who} refuses REST's request. {why}")

    async def _answer(self, asked: Asked, question: Question, within_s: float) -> Any:
        with self._reading(asked, question):
            async with asyncio.timeout(within_s), asked.leader.asked(question) as answer:
                if answer.status_code == 401:
                    raise self._not_let_in(asked.name, await _start_of(answer))
                return await _read(asked.name, answer)

    @contextmanager
    def _reading(self, asked: Asked, question: Question) -> Iterator[None]:
        """Count and log what fails in the block. Raises Transient for it."""
        try:
            yield
        except (httpx2.HTTPError, TimeoutError, ValueError, Transient) as error:
            self._metrics.peer_failures.labels(asked.audience).inc()
            _log.warning(
                "a service can't be read",
                service=asked.audience,
                path=question.path,
                error=repr(error),
            )
            if isinstance(error, Transient):
                raise
            raise Transient(f"{asked.name} does not answer; try again later.") from error


def _base(at: AgentAt) -> str:
    """The agent's address. Raises Rejected where it is none: a query or a fragment in it would hide
    the path that follows, a user's name would send credentials.
    """
    try:
        url = httpx2.URL(at.log_url)
        is_plain = url.scheme in ("http", "https") and bool(url.host) and not url.userinfo
    except (httpx2.InvalidURL, UnicodeError):
        is_plain = False
    if not is_plain or "?" in at.log_url or "#" in at.log_url:
        raise Rejected(
            "AgentAddressError",
            f"Node {at.node} reports {at.log_url[:URL_SHOWN]!r} as the address of its logs,"
            " which is no plain http or https address: check MUSTER_LOG_URL and MUSTER_ADDRESS"
            " on that node.",
        )
    return at.log_url.rstrip("/")


def _outside(at: AgentAt, addresses: Sequence[str]) -> str:
    return (
        f"Node {at.node} reports {at.log_url[:URL_SHOWN]} as the address of its logs"
        f" ({', '.join(addresses[:ADDRESSES_SHOWN])}), which is in none of the networks that REST"
        " may connect to: an operator adds the nodes' network to MUSTER_AGENT_NETWORKS of REST, or"
        " looks at what is wrong with the node."
    )


async def _start_of(answer: httpx2.Response) -> bytes:
    """The first bytes of a refusal."""
    content = b""
    async for piece in answer.aiter_bytes():
        content += piece
        if len(content) > MAX_REFUSAL_BYTES:
            break
    return content[:MAX_REFUSAL_BYTES]


async def _read(name: str, answer: httpx2.Response) -> Any:
    """A service's JSON, None where it knows nothing. Raises Transient, ValueError."""
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise Transient(f"{name} answers {answer.status_code}.")
    content = bytearray()
    async for piece in answer.aiter_bytes():
        content += piece
        if len(content) > MAX_PEER_BYTES:
            raise Transient(f"The answer of {name} has more than {MAX_PEER_BYTES} bytes.")
    return json.loads(content)


RECORD_REFUSALS = {400: "InvalidParametersError", 404: "NoRecordError"}


def _error_text(body: bytes) -> str:
    """A service's own words on why it refuses."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return "It gives no reason."


async def _content(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """What comes. Raises Transient where the Scheduler goes away in the middle."""
    try:
        async for content in answer.aiter_bytes():
            yield content
    except httpx2.HTTPError as error:
        raise Transient("The Scheduler has stopped answering.") from error


async def _pieces(answer: httpx2.Response, start: int) -> AsyncIterator[LogPiece]:
    """What comes. Raises Transient where the agent goes away in the middle."""
    end = start
    try:
        async for content in answer.aiter_bytes():
            end += len(content)
            yield LogPiece(content, end)
    except httpx2.HTTPError as error:
        raise Transient("The node that has the log has stopped answering.") from error
