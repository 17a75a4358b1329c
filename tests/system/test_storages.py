"""Storages from an administrator's command to the file that a task has written."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cli.embedded.broker import EmbeddedBroker
from whole_muster import Muster, a_job, a_muster, with_data

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts"),
]

STORAGES = "extras:\n  storages: [{name: home}, {name: project, mountPath: /mnt/of/all}]\n"
PERSON = {"username": "ann", "password": "correct-horse", "virtualCluster": ["default"]}


@pytest.fixture
async def muster(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[Muster]:
    (tmp_path / "srv" / "users").mkdir(parents=True)
    (tmp_path / "srv" / "data").mkdir()
    (tmp_path / "srv" / "of" / "default").mkdir(parents=True)
    for folder in ("data", "of/default"):
        (tmp_path / "srv" / folder).chmod(0o777)
    agent = {"storage_paths": str(tmp_path / "srv"), "task_paths": ""}
    async with a_muster(
        database_url, fresh_broker.bootstrap, tmp_path, runtime_agent=agent
    ) as running:
        for name, storage in (
            ("home", {"subPath": "users/{user}", "users": ["ann"]}),
            ("project", {"subPath": "of/{virtualCluster}", "virtualClusters": ["default"]}),
            ("global", {"subPath": "data", "users": ["*"]}),
        ):
            wanted = {"hostPath": str(tmp_path / "srv")} | storage
            answer = await running.call("PUT", f"/api/v2/storages/{name}", json=wanted)
            assert answer.status_code == 201, answer.text
        yield running


async def as_user(muster: Muster, name: str) -> str:
    """The token of a new user."""
    person = PERSON | {"username": name}
    made = await muster.call("POST", "/api/v2/users", json=person)
    assert made.status_code == 201, made.text
    answer = await muster.call("POST", "/api/v2/authn/basic/login", json=person_login(person))
    return str(answer.json()["token"])


def person_login(person: dict[str, object]) -> dict[str, object]:
    return {key: person[key] for key in ("username", "password")}


async def test_a_users_task_writes_to_its_folders_and_reads_the_data(
    muster: Muster, tmp_path: Path
) -> None:
    (tmp_path / "srv" / "data" / "set").write_text("numbers")
    admin, ann = muster.token, await as_user(muster, "ann")
    muster.token = ann
    data = "<% $data.uri[0] %>"
    command = f"cp {data} /mnt/home/copy; cp {data} /mnt/of/all; ! touch /mnt/global/x"
    file = with_data(a_job("one", command), "storage://global/set")
    name = await muster.submit(file + STORAGES)
    assert await muster.end_of(name) == "SUCCEEDED"
    copy = tmp_path / "srv" / "users" / "ann" / "copy"
    assert copy.read_text() == "numbers"
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "srv" / "of" / "default" / "set").read_text() == "numbers"
    muster.token = admin
    muster.token = await as_user(muster, "bob")
    refused = await muster.call("POST", "/api/v2/jobs", content=a_job("two") + STORAGES)
    assert refused.status_code == 400
    (problem,) = refused.json()["errors"]
    assert problem["path"] == "extras.storages[0]"
    assert "no storage that bob may use" in problem["message"]
