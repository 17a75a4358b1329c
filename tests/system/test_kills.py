"""Any part is killed or stopped at any moment, amid many jobs: nothing is lost or doubled."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
from muster_up import Http, Up, states_of_jobs, up

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = 100
TROUBLES = 9
WAIT_S = 420.0
PARTS = ("rest", "launcher", "scheduler", "runtime-agent", "alerting", "kafka", "database")

JOB = """protocolVersion: 2
name: {name}
type: job
jobRetryCount: {retries}
prerequisites: [{{type: dockerimage, name: i, uri: none}}]
taskRoles:
  worker:
    dockerImage: i
    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: {gpus}}}
    commands:
      - 'echo "$MUSTER_POD" >> {marks}'
      - '{command}'
"""


def kinds(name: str, number: int, marks: Path) -> tuple[bytes, str]:
    """A job file, and the state in which that job has to end."""
    if number % 10 == 3:
        text = JOB.format(name=name, retries=1, gpus=0, marks=marks, command="exit 9")
        return text.encode(), "FAILED"
    command = "sleep 0.5" if number % 4 == 0 else "true"
    text = JOB.format(name=name, retries=0, gpus=number % 3, marks=marks, command=command)
    return text.encode(), "SUCCEEDED"


async def submit_through_trouble(http: Http, name: str, text: bytes) -> None:
    """Submit until it is accepted; a name that is taken was accepted before an answer was lost."""
    while True:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            answer = await http.call("POST", "/api/v2/jobs", text, "text/yaml")
            if answer.status in (202, 409):
                return
            assert answer.status in (500, 502, 503), answer.body
        await asyncio.sleep(0.2)


def supervisors(home: Path) -> list[int]:
    """Those that hold the lock of a pod's directory; all look alike, for one process forks them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "runtime_agent.supervisor" in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                if any(file.path.startswith(f"{home}/") for file in process.open_files()):
                    found.append(process.pid)
    return sorted(found)


async def trouble(one: Up, rng: random.Random) -> None:
    """Kill or stop one part, or one supervisor."""
    await asyncio.sleep(rng.uniform(0.2, 2.0))
    part = rng.choice((*PARTS, "supervisor"))
    if part == "supervisor":
        found = supervisors(one.home)
        for pid in rng.sample(found, min(1, len(found))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        print(f"killed one of {len(found)} supervisors", end="; ")
    elif rng.random() < 0.6:
        print(f"killed {part}: {one.send(part, signal.SIGKILL)}", end="; ")
    else:
        pause = rng.uniform(1.0, 6.0)
        print(f"stopped {part} for {pause:.1f} s: {one.send(part, signal.SIGSTOP)}", end="; ")
        await asyncio.sleep(pause)
        one.send(part, signal.SIGCONT)


async def test_every_job_reaches_its_right_end_whatever_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    marks = tmp_path / "marks"
    wanted: dict[str, str] = {}
    broker = request.config.getoption("--broker")
    async with up(tmp_path / "home", "--kafka", broker) as (one, http):

        async def submit_all() -> None:
            for number in range(JOBS):
                name = f"job-{number}"
                text, wanted[name] = kinds(name, number, marks)
                await submit_through_trouble(http, name, text)

        async with asyncio.TaskGroup() as group:
            group.create_task(submit_all())
            for _ in range(TROUBLES):
                await trouble(one, rng)
        states: dict[str, str] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while states != wanted:
                    await asyncio.sleep(0.5)
                    states = await states_of_jobs(http, JOBS * 2) or states
        except TimeoutError:
            wrong = sorted(n for n, w in wanted.items() if states.get(n) != w)
            print(one.account())
            for path in (f"jobs/admin~{wrong[0]}/why", "cluster/nodes", "cluster/queue?limit=1"):
                print(path, (await http.call("GET", f"/api/v2/{path}")).body.decode()[:1500])
            few = {n: (states.get(n), wanted[n]) for n in wrong[:5]}
            pytest.fail(f"seed {seed}: {len(wrong)} jobs are not as they should be: {few}")
        for name in (n for n, state in wanted.items() if state == "FAILED"):
            detail = (await http.call("GET", f"/api/v2/jobs/admin~{name}")).json()
            assert detail["jobStatus"]["retryDetails"]["user"] == 1, name
    runs = Counter(marks.read_text().split())
    assert not [pod for pod, count in runs.items() if count > 1], f"seed {seed}: a pod ran twice"
