"""`POST /start-permit/<pod>`: a container asks whether its command may begin.

200 with shell text: it may, and this is what to run. 410: never. 503: ask again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import dataclass, replace
from urllib.parse import parse_qs

import structlog
from muster.contracts.pods import PodRun
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from runtime_agent.domain.ending import Ending
from runtime_agent.domain.environment import Place, task_environment
from runtime_agent.domain.kubernetes.manifest import WORK_DIR, GpuMode, own_address
from runtime_agent.domain.kubernetes.permit import Answer, Asked, decide, script, why_none
from runtime_agent.domain.pods import Phase, Pod
from runtime_agent.handlers import Handlers
from runtime_agent.kubernetes.runner import KubernetesPods
from runtime_agent.runner import Seen
from runtime_agent.supervisor import proc

LONGEST_BODY_BYTES = 4096
READ_S = 5.0
"""A request is some hundred bytes; one that is sent for longer only holds a connection."""
LATER = PlainTextResponse("ask again\n", 503, headers={"Retry-After": "1"})
NEVER = PlainTextResponse("this container has no permit\n", 410)

_log = structlog.get_logger()


@dataclass
class PermitServer:
    """No container begins before `caught_up`: the bus may have a stop for it."""

    handlers: Handlers
    pods: KubernetesPods
    caught_up: asyncio.Event

    def routes(self) -> list[BaseRoute]:
        """The routes to mount beside the health endpoints."""
        return [Route("/start-permit/{pod}", self.ask, methods=["POST"])]

    async def ask(self, request: Request) -> Response:
        """One request of one container."""
        name = request.path_params["pod"]
        try:
            async with asyncio.timeout(READ_S):
                body = await _body(request)
        except TimeoutError:
            return LATER
        sent = parse_qs(body.decode(errors="replace"))
        ticket, nonce = (sent.get(key, [""])[0] for key in ("ticket", "nonce"))
        address = request.client.host if request.client is not None else ""
        try:
            return self._answer(name, Asked(ticket, nonce, address))
        except ValueError:  # no pod's name
            return NEVER
        except (OSError, sqlite3.Error) as error:
            _log.error("a start can't be recorded", pod=name, error=str(error))
            return LATER

    def _answer(self, name: str, asked: Asked) -> Response:
        """The nonce, then the start are on the disk before the answer leaves."""
        entry = self.handlers.memory.entries.get(name)
        pod = None if entry is None else entry.pod
        ticket = self.pods.ticket(name)
        answer = decide(pod, ticket, asked, proc.boot_id())
        self.pods.metrics.start_permits.labels(answer.value).inc()
        record = self.pods.record(name)
        if pod is None or ticket is None or record is None:
            return NEVER
        if (why := why_none(answer, ticket, asked)) is not None:
            _log.warning("a container gets no permit", pod=name, address=asked.address, why=why)
            if answer.is_kept(ticket) and record.denied != why:
                self.pods.keep(replace(record, denied=why))
            return NEVER
        self.pods.asked(name)
        if answer is Answer.LATER or (answer is Answer.FIRST and not self.caught_up.is_set()):
            return LATER
        try:
            command = self.pods.secrets_key.open(pod).command
        except OSError as error:
            if answer is not Answer.FIRST:  # it may have begun: its container asks again
                raise
            self.pods.refuse(pod.pod, Ending(start_error=str(error)))
            return NEVER
        if answer is Answer.FIRST:
            record = replace(record, nonce=asked.nonce, boot=proc.boot_id(), denied="")
            record = self.pods.keep(replace(record, started_at_s=time.time()))
        assert pod.run is not None
        address = own_address(pod.run, asked.address)
        if pod.phase is Phase.ACCEPTED:
            self.handlers.on_seen([Seen(name, record.started_at_s, address=address)])
        environment = task_environment(pod.run, self._place(pod, pod.run, address))
        return PlainTextResponse(script(record.key, environment, command))

    def _place(self, pod: Pod, run: PodRun, address: str | None) -> Place:
        settings, devices = self.pods.settings, self.pods.devices
        is_given = self.pods.rules.gpu_mode is GpuMode.VISIBLE_DEVICES
        counted = {gpu: str(number) for number, gpu in enumerate(run.gpus)}  # in the container
        return Place(
            pod=pod.pod,
            job=pod.job,
            node=settings.node,
            address=address or settings.address,
            work_dir=WORK_DIR,
            simulated_gpus=devices.simulated,
            gpu_names=counted if is_given else devices.names,
            inherited={},
        )


async def _body(request: Request) -> bytes:
    """As much of it as can be one of ours."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY_BYTES:
            return b""
    return body
