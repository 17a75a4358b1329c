"""The secrets of a job file: its task has them, and nobody else ever reads them in clear."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli.embedded.broker import EmbeddedBroker
from everywhere import everything_in_the_database, everything_on_the_bus, files_below
from muster.contracts.topics import Service
from muster.sealing import make_private_key, public_key_of
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from whole_muster import Muster, a_job, a_muster, eventually

pytestmark = pytest.mark.system

TOKEN, PASSWORD = "marker-5d0c7e-token", "marker-5d0c7e-password"
SPILLED = "marker-81b2aa-spilled"


def with_secrets(file: str, **secrets: str) -> str:
    """The job file with secrets, and a password of its image."""
    lines = "".join(f"  {name}: {value}\n" for name, value in secrets.items())
    auth = f'uri: "none", auth: {{username: me, password: {PASSWORD}}}'
    return file.replace('uri: "none"', auth) + f"secrets:\n{lines}"


def of_all_processes() -> str:
    """Arguments and environments of every process of the machine that this one may read."""

    def found() -> Iterator[bytes]:
        for pid in psutil.pids():
            for name in ("cmdline", "environ"):
                try:
                    yield Path(f"/proc/{pid}/{name}").read_bytes()
                except OSError:
                    continue

    return b"\n".join(found()).decode(errors="replace")


async def answers_about(muster: Muster, name: str) -> str:
    """All that REST answers about a job."""
    text = ""
    for path in ("", f"/{name}", f"/{name}/config", f"/{name}/attempts/0", f"/{name}/why"):
        answer = await muster.call("GET", f"/api/v2/jobs{path}")
        assert answer.status_code == 200, answer.text
        text += answer.text
    return text


async def evidence_of(muster: Muster, name: str) -> Any:
    (task,) = (await muster.job(name))["taskRoles"]["worker"]["taskStatuses"]
    return task["containerExitSpec"], task["containerExitDiagnostics"]


async def test_a_jobs_secrets_are_in_clear_for_its_task_alone(
    muster: Muster,
    fresh_broker: EmbeddedBroker,
    spans: InMemorySpanExporter,
    capfd: pytest.CaptureFixture[str],
) -> None:
    go = muster.home / "go"
    command = f'printf %s "<% $secrets.token %>" | sha256sum; until [ -e {go} ]; do sleep 0.1; done'
    name = await muster.submit(with_secrets(a_job("secret", command), token=TOKEN))
    await eventually(lambda: muster.state(name), lambda state: state == "RUNNING")
    agent = muster.home / "agent"
    holders = [path.name for path in agent.rglob("*") if path.is_file() and TOKEN in _text(path)]
    processes = of_all_processes()
    go.touch()
    assert await muster.end_of(name) == "SUCCEEDED"
    failing = a_job("spilling", "echo it is <% $secrets.token %>. >&2; exit 3")
    spilling = await muster.submit(with_secrets(failing, token=SPILLED))
    assert await muster.end_of(spilling) == "FAILED"
    await eventually(muster.unsettled, lambda count: count == 0)

    hashed = hashlib.sha256(TOKEN.encode()).hexdigest()
    assert hashed in files_below(agent), "the task did not get its secret"
    assert holders == ["command.sh"]
    detail = str(await muster.job(spilling))
    assert "it is ******." in detail
    answers = await answers_about(muster, name) + await answers_about(muster, spilling)
    assert "******" in answers
    places = {
        "processes": processes,
        "the answers": answers,
        "the bus": (await everything_on_the_bus(fresh_broker.bootstrap)).decode(errors="replace"),
        "the database": await everything_in_the_database(muster),
        "the agent's home": files_below(agent).replace(f"it is {SPILLED}.", ""),
        "traces": "".join(span.to_json() for span in spans.get_finished_spans()),
        "the logs": "".join(capfd.readouterr()),
    }
    marks = (TOKEN, PASSWORD, SPILLED)
    assert [(place, m) for place, text in places.items() for m in marks if m in text] == []


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


async def test_a_file_that_was_read_back_is_refused_until_its_secrets_are_written(
    muster: Muster,
) -> None:
    name = await muster.submit(with_secrets(a_job("one", "true <% $secrets.a %>"), a="x", b="y"))
    config = (await muster.call("GET", f"/api/v2/jobs/{name}/config")).text
    assert PASSWORD not in config
    again = config.replace("name: one", "name: two")
    refused = await muster.call("POST", "/api/v2/jobs", content=again)
    assert refused.status_code == 400
    problems = [(problem["path"], problem["message"]) for problem in refused.json()["errors"]]
    assert [path for path, _ in problems] == [
        "prerequisites[0].auth.password",
        "secrets.a",
        "secrets.b",
    ]
    assert "write the secret" in problems[0][1]
    filled = again.replace("******", "z")
    assert (await muster.call("POST", "/api/v2/jobs", content=filled)).status_code == 202


async def test_jobs_of_before_a_rotation_and_a_restart_get_their_secrets(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path) as muster:
        await muster.stop(Service.RUNTIME_AGENT)
        command = f"printf %s <% $secrets.a %> > {tmp_path}/seen"
        name = await muster.submit(with_secrets(a_job("early", command), a="early-one"))
        key = make_private_key()
        await muster.stop(Service.LAUNCHER)
        await muster.stop(Service.REST)
        muster.settings[Service.LAUNCHER]["secrets_keys"] = f"{key},{muster.secrets_key}"
        muster.settings[Service.REST]["secrets_public_key"] = public_key_of(key)
        for service in (Service.LAUNCHER, Service.REST, Service.RUNTIME_AGENT):
            await muster.start(service)
        assert await muster.end_of(name) == "SUCCEEDED"
        assert (tmp_path / "seen").read_text() == "early-one"
        muster.settings[Service.LAUNCHER]["secrets_keys"] = key
        await muster.stop(Service.LAUNCHER)
        await muster.start(Service.LAUNCHER)
        name = await muster.submit(with_secrets(a_job("late", command), a="late-one"))
        assert await muster.end_of(name) == "SUCCEEDED"
        assert (tmp_path / "seen").read_text() == "late-one"
