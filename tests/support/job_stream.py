"""A stream of jobs of all kinds through a Muster in trouble, and the proof that each ended right.

Every pod appends its name to one file as it starts. So the file tells whether a name ran twice,
and in which order the attempts of a job ran, whatever became of the databases.
"""

import asyncio
import contextlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from muster.ids import parse_pod
from muster.service_keys import SCHEDULER
from muster_up import Answer, Http
from parts_of_muster import AGENTS, CLUSTER_KEY, GPUS, Parts
from plain_http import NO_TLS
from service_auth import ServiceAuth

FINAL = ("SUCCEEDED", "FAILED", "STOPPED")
LOST = (OSError, TimeoutError, asyncio.IncompleteReadError)
SCHEMAS = ("rest", "launcher", "scheduler")
PAGE = 5000
SAMPLE = 4
POLL_S = 0.5

JOB = """protocolVersion: 2
name: {name}
type: job
jobRetryCount: {retries}
prerequisites: [{{type: dockerimage, name: i, uri: none}}]
taskRoles:
  worker:
    instances: {instances}
    dockerImage: i
    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: {gpus}}}
    commands:
      - 'echo "$MUSTER_POD $$" >> {marks}'
      - '{command}'
"""


@dataclass(frozen=True)
class Wanted:
    """How a job has to end. `stops`: the user wants it stopped."""

    state: str
    retries: int = 0
    stops: bool = False


@dataclass
class Jobs:
    """`wanted`: by name, those that REST accepted. `states` and `attempts`: as REST showed last.
    `fell`: what REST has taken back: final states and numbers of attempts. `forgotten`: of which a
    restore may have made REST forget the job, or its end.
    """

    http: Http
    parts: Parts
    rng: random.Random
    wanted: dict[str, Wanted] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    fell: list[str] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)

    @property
    def marks(self) -> Path:
        return self.parts.home.parent / "marks"

    def over(self) -> set[str]:
        """The jobs that have ended, as far as REST has shown."""
        return {name for name, state in self.states.items() if state in FINAL}

    def open(self) -> int:
        """How many jobs have not ended, as far as REST has shown."""
        return sum(state not in FINAL for state in self.states.values())

    def _draw(self, name: str) -> tuple[str, Wanted]:
        rng, marks = self.rng, self.marks
        kind = rng.choices(("short", "sleeps", "gang", "fails", "stops"), (8, 5, 4, 3, 2))[0]
        instances, gpus, command, wanted = 1, rng.randrange(3), "true", Wanted("SUCCEEDED")
        match kind:
            case "sleeps":
                command = f"sleep {rng.uniform(1, 6):.1f}"
            case "gang":
                instances, gpus = rng.randint(2, 4), rng.randint(1, 2)
                command = f"sleep {rng.uniform(0.2, 3):.1f}"
            case "fails":
                wanted = Wanted("FAILED", rng.randint(0, 2))
                command = f"sleep {rng.uniform(0, 1):.1f}; exit 9"
            case "stops":
                wanted = Wanted("STOPPED", stops=True)
                command = "exec sleep 3600"
            case _:
                pass
        text = JOB.format(
            name=name,
            retries=wanted.retries,
            instances=instances,
            gpus=gpus,
            marks=marks,
            command=command,
        )
        return text, wanted

    async def submit(self) -> None:
        """Submit one more job until it is accepted. A name that is taken was accepted before its
        answer was lost.
        """
        name = f"job-{len(self.wanted)}"
        text, self.wanted[name] = self._draw(name)
        while True:
            answer = await self._call("POST", "jobs", text.encode(), "text/yaml")
            if answer is not None and answer.status in (202, 409):
                return
            assert answer is None or answer.status >= 500, answer.body
            await asyncio.sleep(0.2)

    async def stop_some(self, share: float) -> None:
        """Ask for the stop of those that are to be stopped, each time of about this share."""
        for name, wanted in self.wanted.items():
            is_open = self.states.get(name, "STOPPED") not in FINAL
            if wanted.stops and is_open and self.rng.random() < share:
                body = json.dumps({"value": "STOP"}).encode()
                await self._call("PUT", f"jobs/admin~{name}/executionType", body)

    async def look(self) -> None:
        """Learn the states, where REST answers."""
        states: dict[str, str] = {}
        while True:
            path = f"jobs?limit={PAGE}&offset={len(states)}&order=submissionTime,ASC"
            answer = await self._call("GET", path)
            if answer is None or answer.status != 200:
                return
            page = json.loads(answer.body)
            states |= {item["name"]: item["state"] for item in page}
            if len(page) < PAGE:
                break
        for name, state in self.states.items():
            if state in FINAL and states.get(name) != state:
                self.fell.append(f"{name} was {state} and is {states.get(name)}")
        self.states = states
        open_ones = [name for name, state in states.items() if state not in FINAL]
        for name in self.rng.sample(open_ones, min(SAMPLE, len(open_ones))):
            await self._look_at_attempt(name)

    async def _look_at_attempt(self, name: str) -> None:
        answer = await self._call("GET", f"jobs/admin~{name}")
        if answer is None or answer.status != 200:
            return
        attempt, before = answer.json()["jobStatus"]["attemptId"], self.attempts.get(name, 0)
        if attempt < before:
            self.fell.append(f"{name} was at attempt {before} and is at {attempt}")
        self.attempts[name] = attempt

    async def _call(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> Answer | None:
        with contextlib.suppress(*LOST):
            return await self.http.call(method, f"/api/v2/{path}", body, content_type)
        return None

    def wrong(self, *, may_be_gone: bool) -> dict[str, str]:
        """Jobs that REST shows otherwise than they should be; `may_be_gone`: it may have lost some,
        as its database was put back. REST tells the Launcher to stop what it does not know, or
        knows to be over. Where a later restore takes that back, the job stays stopped.
        """
        return {
            name: f"{self.states.get(name)}, not {wanted.state}"
            for name, wanted in self.wanted.items()
            if self.states.get(name) != wanted.state
            and not (may_be_gone and name not in self.states)
            and not (name in self.forgotten and self.states[name] == "STOPPED")
        }

    async def end_right(self, seed: int, wait_s: float, *, may_be_gone: bool) -> None:
        """All jobs come to their right ends, and then all sides agree that nothing is held."""
        try:
            async with asyncio.timeout(wait_s):
                while self.states == {} or self.wrong(may_be_gone=may_be_gone):
                    await self.stop_some(1.0)
                    await self.look()
                    await asyncio.sleep(POLL_S)
                while held := await self._held():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            wrong = self.wrong(may_be_gone=may_be_gone)
            self.check_marks(seed)
            what = f"{len(wrong)} jobs: {dict(list(wrong.items())[:5])}" if wrong else str(held)
            print(await self._account(list(wrong)[:2]))
            pytest.fail(f"seed {seed}: not as it should be: {what}")
        if not may_be_gone:
            assert not self.fell, f"seed {seed}: {self.fell}"
        await self._check_retries()
        self.check_marks(seed)

    async def _check_retries(self) -> None:
        for name in self.states.keys() & self.wanted.keys():
            if self.wanted[name].state == "FAILED":
                answer = await self._call("GET", f"jobs/admin~{name}")
                assert answer is not None
                found = answer.json()["jobStatus"]["retryDetails"]["user"]
                assert found == self.wanted[name].retries, (name, found)

    def check_marks(self, seed: int) -> None:
        """No pod name ran twice, and no later run of a job has a lower attempt."""
        text = self.marks.read_text() if self.marks.exists() else ""
        runs = [line.split()[0] for line in text.splitlines()]
        twice = [pod for pod, count in Counter(runs).items() if count > 1]
        assert not twice, f"seed {seed}: these pods ran twice: {twice}"
        newest: dict[str, int] = {}
        fell = []
        for pod in runs:
            name = parse_pod(pod)
            job = pod.split("-")[0]
            if name.job_attempt < newest.get(job, 0):
                fell.append(pod)
            newest[job] = max(newest.get(job, 0), name.job_attempt)
        assert not fell, f"seed {seed}: these pods ran after a later attempt of their job: {fell}"

    async def _held(self) -> dict[str, Any]:
        """What any side still holds, or waits for."""
        found: dict[str, Any] = {}
        conn = await asyncpg.connect(self.parts.dsn)
        try:
            for name, query in _AT_REST.items():
                if rows := [tuple(row) for row in await conn.fetch(query)]:
                    found[name] = rows
        finally:
            await conn.close()
        answer = await self._call("GET", "cluster/nodes")
        nodes = [] if answer is None else answer.json()["nodes"]
        found["REST's nodes"] = [
            (node["name"], gpu["pod"]) for node in nodes for gpu in node["gpus"] if gpu.get("pod")
        ]
        if len(nodes) != len(AGENTS):
            found["REST's nodes"] = nodes
        found["the Scheduler's memory"] = await self._scheduler_holds()
        for agent in AGENTS:
            text = await _metrics(self.parts.ports[agent])
            found[agent] = _HELD.findall(text) if "muster_agent_pods{" in text else text
        found["supervisors"] = self.parts.supervisors()
        return {name: what for name, what in found.items() if what}

    async def _scheduler_holds(self) -> list[Any]:
        url = f"http://127.0.0.1:{self.parts.ports['scheduler']}/nodes"
        auth = ServiceAuth(SCHEDULER, CLUSTER_KEY)
        try:
            async with httpx2.AsyncClient(timeout=30, trust_env=False, verify=NO_TLS) as client:
                nodes = (await client.get(url, auth=auth)).json()["nodes"]
        except httpx2.HTTPError as error:
            return [repr(error)]
        if len(nodes) != len(AGENTS):
            return list(nodes)
        return [node for node in nodes if node["gpusFree"] != GPUS]

    async def _account(self, jobs: list[str]) -> str:
        lines = []
        for job in jobs:
            for path in (f"jobs/admin~{job}", f"jobs/admin~{job}/why"):
                answer = await self._call("GET", path)
                lines.append(f"{path}: {answer and answer.body.decode()[:3000]}")
        conn = await asyncpg.connect(self.parts.dsn)
        try:
            for job, schema in product(jobs, SCHEMAS):
                rows = await conn.fetch(
                    f"SELECT * FROM {schema}.subject WHERE subject LIKE (SELECT id FROM rest.job"
                    " WHERE name = $1) || '%'",
                    job,
                )
                lines += [f"{schema}'s subject: {dict(row)}" for row in rows]
        finally:
            await conn.close()
        return "\n".join(lines)


_AT_REST = {
    "placements": "SELECT pod, node FROM scheduler.placement LIMIT 5",
    "gangs": "SELECT gang FROM scheduler.gang LIMIT 5",
} | {
    f"{schema}'s subjects": "SELECT kind, subject, revision, seen, acknowledged, is_open"
    f" FROM {schema}.subject WHERE repeat_at IS NOT NULL OR answer_at IS NOT NULL OR is_open"
    " LIMIT 5"
    for schema in SCHEMAS
}


_HELD = re.compile(
    r"^(?:muster_agent_pods{.*}|muster_unacknowledged_messages) ([1-9].*)$", re.MULTILINE
)


async def _metrics(port: int) -> str:
    try:
        async with httpx2.AsyncClient(timeout=30, trust_env=False, verify=NO_TLS) as client:
            return (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    except httpx2.HTTPError as error:
        return repr(error)


ERRORS = re.compile(r'"level": ?"(error|critical)"')


def a_seed() -> int:
    """The one that MUSTER_TEST_SEED asks for, else another each time."""
    return int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))


def errors(log: Path, say: Callable[[str], None]) -> None:
    """Show how often each error was logged in a folder."""
    counts: Counter[str] = Counter()
    for file in sorted(log.glob("*.log")):
        for line in file.read_text(errors="replace").splitlines():
            if ERRORS.search(line):
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    counts[f"{file.stem}: {entry.get('event')} {entry.get('reason', '')}"] += 1
    for what, count in counts.most_common():
        say(f"  {count} x {what[:200]}")
