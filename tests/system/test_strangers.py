"""Another user who may submit jobs, on a machine where the agent is root: every attack fails.

Each line of docs/security.md about a shared machine is tried by that user's job.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from muster_up import ADMIN_PASSWORD, Http, Up, up
from runtime_agent.supervisor.records import WORK_DIR

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root separates users"),
]

PASSWORD = "correct horse battery"
SERVICES = ("rest", "launcher", "scheduler", "runtime-agent", "alerting", "database", "kafka")
JOB = """
protocolVersion: 2
name: {name}
type: job
prerequisites: [{{type: dockerimage, name: none, uri: none}}]
taskRoles:
  worker:
    dockerImage: none
    resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: 0}}
    commands: {commands}
"""
NOT_FOR_ROOT = ("stopping", "other's /tmp", "database without", "the bus", "other's log over HTTP")
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "check": False}
PUBLISH = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

async def publish():
    producer = AIOKafkaProducer(bootstrap_servers=sys.argv[1], request_timeout_ms=5000)
    try:
        await producer.start()
        await producer.send_and_wait("job-submitted", b"{}")
    except (KafkaError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        await producer.stop()

asyncio.run(publish())
"""


async def a_user(admin: Http, name: str) -> Http:
    body = {"username": name, "password": PASSWORD, "virtualCluster": ["default"]}
    made = await admin.call("POST", "/api/v2/users", json.dumps(body).encode())
    assert made.status == 201, made.body
    return await logged_in(admin, name, PASSWORD)


async def logged_in(server: Http, name: str, password: str) -> Http:
    login = json.dumps({"username": name, "password": password}).encode()
    answer = await server.call("POST", "/api/v2/authn/basic/login", login)
    return Http(server.port, answer.json()["token"], connections=2)


async def run(user: Http, name: str, *commands: str) -> None:
    text = JOB.format(name=name, commands=json.dumps(list(commands)))
    made = await user.call("POST", "/api/v2/jobs", text.encode(), "text/yaml")
    assert made.status == 202, made.body


async def wait_for(user: Http, job: str, *states: str) -> dict[str, Any]:
    """The job, once it is in one of the states. pytest's own timeout ends a vain wait."""
    while True:
        found = (await user.call("GET", f"/api/v2/jobs/{job}")).json()
        if found["jobStatus"]["state"] in states:
            return dict(found)


def attacks(one: Up, victim: Path, victim_pid: int) -> dict[str, str]:
    """By name, shell commands of which each succeeds only where something is open."""
    home = one.home
    found = {
        "admin's token": f"cat {home}/credentials.json",
        "secrets of the installation": f"cat {home}/state.json",
        "database's password": f"cat {home}/postgres/password",
        "database's files": f"ls {home}/postgres/data",
        "agent's journal": f"cat {home}/agent/journal.sqlite",
        "agent's folder": f"ls {home}/agent/pods",
        "services' logs": f"cat {home}/log/rest.log",
        "other's file": f"cat {victim / WORK_DIR}/mine",
        "other's command": f"cat {victim}/command.sh",
        "other's records": f"cat {victim}/pod.json",
        "other's log": f"cat {victim}/logs/stdout.log",
        "other's /tmp": "cat /tmp/mine",
        "other's environment": f"cat /proc/{victim_pid}/environ",
        "other's memory": f"(exec 3< /proc/{victim_pid}/mem)",
        "other's working directory": f"ls /proc/{victim_pid}/cwd/",
        "other's view of files": f"ls /proc/{victim_pid}/root/tmp",
        "stopping other's task": f"kill -TERM {victim_pid}",
        "other's log over HTTP": f"{sys.executable} -c {shlex.quote(_ask_agent(one, victim.name))}",
        "database without a password": f"{sys.executable} -c {shlex.quote(_connect(one))}",
    }
    for part in SERVICES:
        if pid := one.pid(part):
            found |= {
                f"environment of {part}": f"cat /proc/{pid}/environ",
                f"memory of {part}": f"(exec 3< /proc/{pid}/mem)",
                f"open files of {part}": f"ls /proc/{pid}/fd",
                f"stopping {part}": f"kill -TERM {pid}",
            }
    return found


def _ask_agent(one: Up, pod: str) -> str:
    port = json.loads((one.home / "state.json").read_text())["ports"]["runtime-agent"]
    url = f"http://127.0.0.1:{port}/logs/{pod}/stdout"
    return f"import urllib.request; urllib.request.urlopen({url!r}, timeout=10)"


def _connect(one: Up) -> str:
    dsn = f"postgresql://muster@127.0.0.1:{one.database_port}/muster"
    return f"import asyncio, asyncpg; asyncio.run(asyncpg.connect({dsn!r}, timeout=10))"


async def test_another_users_job_opens_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker = request.config.getoption("--broker")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    async with up(tmp_path / "home", "--kafka", broker) as (one, server):
        admin = await logged_in(server, "admin", ADMIN_PASSWORD)
        ada, eve = await a_user(admin, "ada"), await a_user(admin, "eve")
        hide = "umask 0; echo secret | tee mine /tmp/mine"
        share = f"pwd > {shared}/where; echo $$ > {shared}/pid"
        await run(ada, "victim", hide, share, f"until test -e {shared}/done; do sleep 0.05; done")
        await wait_for(ada, "ada~victim", "RUNNING")
        while not (shared / "pid").exists() or not (shared / "pid").read_text().strip():
            await wait_for(ada, "ada~victim", "RUNNING")
        victim = Path((shared / "where").read_text().strip()).parent
        tries = attacks(one, victim, int((shared / "pid").read_text()))
        if broker == "apache":
            tries["broker's files"] = f"ls {one.home}/kafka/data"
            tries["the bus"] = (
                f"{sys.executable} -c {shlex.quote(PUBLISH)} 127.0.0.1:{one.kafka_port}"
            )
        for name, attack in tries.items():
            if not name.startswith(NOT_FOR_ROOT):  # or the attack proves nothing
                done = await asyncio.to_thread(subprocess.run, ["bash", "-c", attack], **QUIET)
                assert done.returncode == 0, name
        lines = [
            f"if {attack} > /dev/null 2>&1; then echo {shlex.quote(name)}; else echo shut; fi"
            for name, attack in tries.items()
        ]
        script = shared / "attacks"
        script.write_text("\n".join(lines))
        await run(eve, "attacker", "id -u", f"bash {script} | tee {shared}/found")
        found = await wait_for(eve, "eve~attacker", "SUCCEEDED", "FAILED", "STOPPED")
        assert found["jobStatus"]["state"] == "SUCCEEDED", found
        assert (shared / "found").read_text().split("\n")[:-1] == ["shut"] * len(tries)
        (shared / "done").touch()
        assert (await wait_for(ada, "ada~victim", "SUCCEEDED", "FAILED"))["jobStatus"][
            "state"
        ] == "SUCCEEDED"
        assert all(one.pid(part) for part in SERVICES if part in one.status()["services"])
        for user in (ada, eve):
            await user.close()
