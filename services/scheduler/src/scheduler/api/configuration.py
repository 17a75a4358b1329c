"""The virtual clusters and policy that administrators have set, and which of them are in force.
A new text can be checked before it is set.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from muster.errors import Transient
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from scheduler.api.answers import Answer
from scheduler.comparisons import Comparisons, Question
from scheduler.configuring import Configuring
from scheduler.domain.configured import Setting, checked, in_force
from scheduler.domain.core.config import ClusterConfig, Finding
from scheduler.domain.core.model import NO_ONE
from scheduler.domain.core.ordering import OrderPolicy
from scheduler.domain.formats.cluster_change import VIRTUAL_CLUSTERS
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.domain.formats.fields import MAX_FINDINGS, FormatError
from scheduler.domain.formats.writing import to_line
from scheduler.domain.moments import time_of
from scheduler.domain.plans import Plan
from scheduler.domain.state import State
from scheduler.settings import SchedulerSettings

BODY_S = 10.0
"""The time limit for the body of a configuration to check."""


class Deciding(Protocol):
    """What the answers are read from."""

    @property
    def state(self) -> State: ...

    @property
    def configuring(self) -> Configuring: ...

    def at(self) -> float: ...


class Configurations:
    """``/configuration``, ``/configuration/check`` and ``/configuration/what-if``."""

    def __init__(
        self, decider: Deciding, settings: SchedulerSettings, comparisons: Comparisons
    ) -> None:
        self._decider = decider
        self._settings = settings
        self._comparisons = comparisons
        self._seats = asyncio.Semaphore(settings.configuration_checks)

    async def show(self, _: Request) -> Response:
        """The configuration in use: its ``revision`` and ``version`` (null: none is set).
        ``newest`` is the newest received, ``problems`` the reasons against it.
        ``inForce``: virtual clusters and policy in use, from any source. ``rejectedFile``: the
        cluster's file was changed and is wrong; null: it is in use.
        """
        state, configuring = self._decider.state, self._decider.configuring
        rejected = configuring.rejected
        answer = {
            "asOf": state.core.cycles,
            **_named(state.made_of.setting),
            "isHonoured": state.made_of.is_honoured,
            "newest": _named(configuring.setting),
            "problems": _listed(configuring.problems[:MAX_FINDINGS]),
            "inForce": in_force(state.core.forest.config),
            "rejectedFile": None
            if rejected is None
            else {"since": time_of(rejected.at), "problems": rejected.problems},
        }
        return _json(answer)

    async def check(self, request: Request) -> Response:
        """``content``: what the text sets; null if it is invalid, then ``errors`` has the reasons.
        ``warnings``: parts without effect or with a doubtful one. The check runs in a thread
        against the present hardware and changes nothing.
        """
        async with self._read(request) as text:
            if isinstance(text, Response):
                return text
            state = self._decider.state
            plan = state.plan(self._decider.configuring.config)
            answer = await asyncio.to_thread(_check, text, plan, state.core.policies)
            if answer["content"] is not None:
                after = Setting(0, None, answer["content"]).of(plan.config())
                answer["warnings"] += _listed(_left_out(self._decider.state, after))
            return _json({"asOf": state.core.cycles, **answer})

    async def what_if(self, request: Request) -> Response:
        """The effect of a configuration, or of none, on the last days. ``state`` is ``done`` with a
        ``report``, ``none`` or ``failed`` with the ``reason``, or ``running``: ask again.
        """
        async with self._read(request) as text:
            if isinstance(text, Response):
                return text
            state, at = self._decider.state, self._decider.at()
            plan = state.plan(self._decider.configuring.config)
            config = state.core.forest.config
            policies = state.core.policies
            try:
                question = await asyncio.to_thread(_question, text, plan, policies, config, at)
            except FormatError as error:
                message = f"It can't be set: {error.findings[0].message}."
                return _error(400, "InvalidConfigError", message)
        try:
            answer = await self._comparisons.ask(question)
        except Transient as error:
            return _error(503, "BusyError", str(error))
        return _json({"asOf": state.core.cycles, **answer})

    @asynccontextmanager
    async def _read(self, request: Request) -> AsyncIterator[bytes | Response]:
        """The text to check, or the reason for its rejection; other requests wait meanwhile."""
        if self._seats.locked():
            yield _error(503, "BusyError", "Another configuration is being checked; try again.")
            return
        async with self._seats:
            try:
                text = await self._body(request)
            except TimeoutError:
                yield _error(
                    408, "RequestTimeoutError", "The body was not received in time. Send it again."
                )
                return
            if text is None:
                yield _error(413, "RequestTooLargeError", "The configuration is too large.")
                return
            yield text

    async def _body(self, request: Request) -> bytes | None:
        """The request's body; None if it is too large. Raises TimeoutError if it is late."""
        body = bytearray()
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > self._settings.configuration_bytes:
                    return None
        return bytes(body)


def _check(text: bytes, plan: Plan, policies: Mapping[str, OrderPolicy]) -> Answer:
    try:
        found = checked(text, plan.config(), policies)
    except FormatError as error:
        return {
            "content": None,
            "errors": _listed(error.findings, error.more),
            "warnings": [],
        }
    return {
        "content": found.content,
        "errors": [],
        "warnings": _listed(found.warnings, found.more),
    }


def _question(
    text: bytes,
    plan: Plan,
    policies: Mapping[str, OrderPolicy],
    config: ClusterConfig,
    at: float,
) -> Question:
    """Raises FormatError if the text is invalid; a removal needs no check."""
    base = plan.config()
    content = checked(text, base, policies).content if text else None
    return Question(
        to_line(cluster_data(config)),
        in_force(config),
        in_force(Setting(0, None, content).of(base)),
        at,
    )


def _left_out(state: State, after: ClusterConfig) -> list[Finding]:
    """Virtual clusters with gangs that the change would remove."""
    known = filter(None, map(state.core.gang, state.core.gang_ids()))
    gangs = Counter(each.gang.virtual_cluster for each in known)
    return [
        Finding(
            VIRTUAL_CLUSTERS,
            f"leaves out {name}, which has gangs ({count}): running ones lose their cells and may"
            " be preempted; waiting ones are refused",
        )
        for name, count in sorted(gangs.items())
        if name != NO_ONE and name not in after.virtual_clusters
    ][:MAX_FINDINGS]


def _listed(findings: Iterable[Finding], more: int = 0) -> list[Answer]:
    listed = [
        {"path": each.path, "line": each.line or None, "message": each.message} for each in findings
    ]
    if more:
        listed.append({"path": "", "line": None, "message": f"and {more} more"})
    return listed


def _named(setting: Setting | None) -> Answer:
    return {
        "revision": None if setting is None else setting.revision,
        "version": None if setting is None else setting.version,
    }


def _json(answer: Answer) -> Response:
    return Response(to_line(answer), media_type="application/json")


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status)
