"""Storages: administrators set them, users name them in job files."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.storages import StorageMount
from rest_double import run_cli

STORAGES = "/api/v2/storages"
JOBS = "/api/v2/jobs"
HOME = {"claim": "home", "hostPath": "/srv/home", "subPath": "users/{user}", "users": ["ann"]}


def naming(rest: Any, name: str, storages: str) -> str:
    file: str = rest.job_file(name)
    return f"{file}extras:\n  storages: {storages}\n"


async def put(rest: Any, name: str, **storage: Any) -> None:
    answer = await rest.client.put(f"{STORAGES}/{name}", json=storage)
    assert answer.status_code == 201, answer.text


async def mounts(rest: Any, name: str, user: str = "ann") -> tuple[StorageMount, ...]:
    (message,) = await rest.messages(await rest.job_id(name, user))
    spec = message.spec
    assert spec is not None
    return spec.mounts


async def test_a_job_mounts_the_storages_that_it_names(rest: Any) -> None:
    await put(rest, "home", **HOME)
    await put(rest, "data", claim="data", readOnly=True, virtualClusters=["default"])
    async with await rest.make_user("ann") as ann:
        file = naming(rest, "one", "[{name: home}, {name: data, mountPath: /data/all}]")
        answer = await ann.post(JOBS, content=file)
        assert answer.status_code == 202, answer.text
        assert [each["path"] for each in answer.json()["warnings"]] == ["prerequisites[0].uri"]
    assert await mounts(rest, "one") == (
        StorageMount(
            name="home", mount_path="/mnt/home", claim="home", host_path="/srv/home",
            sub_path="users/ann", is_own=True,
        ),
        StorageMount(name="data", mount_path="/data/all", claim="data", read_only=True),
    )  # fmt: skip


async def test_an_empty_list_mounts_the_default_ones_that_the_user_may_use(rest: Any) -> None:
    await put(rest, "home", **HOME, default=True)
    await put(rest, "other", hostPath="/srv/other", users=["*"])
    await put(rest, "bobs", hostPath="/srv/bobs", users=["bob"], default=True)
    async with await rest.make_user("ann") as ann:
        for name, storages in (("all", "[]"), ("none", "null")):
            answer = await ann.post(JOBS, content=naming(rest, name, storages))
            assert answer.status_code == 202, answer.text
        assert (await ann.post(JOBS, content=rest.job_file("absent"))).status_code == 202
    assert [mount.name for mount in await mounts(rest, "all")] == ["home"]
    assert await mounts(rest, "none") == await mounts(rest, "absent") == ()


@pytest.mark.parametrize(
    ("storages", "message"),
    [
        ("[{name: nowhere}]", "names no storage that ann may use"),
        ("[{name: bobs}]", "use one of claimed, home, or ask an admin"),
        ("[{name: home}, {name: claimed, mountPath: /mnt/home/x}]", "as home is at /mnt/home"),
        ("[{name: claimed, mountPath: /mnt}, {name: home}]", "as claimed is at /mnt"),
        ("[{name: home, mountPath: /data}]", "mounted below /mnt only"),
        ("[{name: home, mountPath: /mnt}]", "mounted below /mnt only"),
        ("[{name: claimed, mountPath: /dev/shm}]", "which tasks need"),
        ("[{name: claimed, mountPath: /mnt/../etc}]", "must be an absolute path"),
        ("[{name: home, path: /data}]", ""),
    ],
)
async def test_a_storage_that_can_not_be_mounted_is_refused_with_its_place(
    rest: Any, storages: str, message: str
) -> None:
    await put(rest, "home", **HOME | {"claim": None})
    await put(rest, "bobs", hostPath="/srv/bobs", users=["bob"], virtualClusters=["other"])
    await put(rest, "claimed", claim="c", users=["*"])
    async with await rest.make_user("ann") as ann:
        file = naming(rest, "one", storages)
        refused = await ann.post(JOBS, content=file)
    answer = refused.json()
    assert (refused.status_code, answer["code"]) == (400, "InvalidProtocolError")
    (problem,) = answer["errors"]
    assert problem["path"].startswith("extras.storages[")
    assert problem["line"] == len(file.splitlines())
    assert message in problem["message"]


async def test_a_user_who_may_use_no_storage_is_told_of_none_to_use(rest: Any) -> None:
    await put(rest, "bobs", hostPath="/srv/bobs", users=["bob"])
    async with await rest.make_user("ann") as ann:
        refused = await ann.post(JOBS, content=naming(rest, "one", "[{name: bobs}]"))
    (problem,) = refused.json()["errors"]
    assert problem["message"].endswith(" the virtual cluster default; ask an admin for it")


def with_data(rest: Any, name: str, uri: str) -> str:
    file: str = rest.job_file(name)
    data = f"  - {{name: set, type: data, uri: ['{uri}']}}\ntaskRoles:"
    return file.replace("taskRoles:", data).replace("    instances", "    data: set\n    instances")


async def test_data_in_a_storage_are_mounted_and_never_written(rest: Any) -> None:
    await put(rest, "sets", claim="sets", hostPath="/srv/sets", users=["ann"])
    async with await rest.make_user("ann") as ann:
        answer = await ann.post(JOBS, content=with_data(rest, "one", "storage://sets/digits"))
        assert answer.status_code == 202, answer.text
        refused = await ann.post(JOBS, content=with_data(rest, "two", "storage://other/x"))
    assert await mounts(rest, "one") == (
        StorageMount(
            name="sets",
            mount_path="/mnt/sets",
            claim="sets",
            host_path="/srv/sets",
            read_only=True,
        ),
    )
    (problem,) = refused.json()["errors"]
    assert problem["path"] == "prerequisites[1].uri[0]"
    assert "names no storage that ann may use" in problem["message"]


async def test_a_users_folder_never_leaves_the_storage(rest: Any) -> None:
    await put(rest, "home", **HOME | {"users": ["*"]})
    async with await rest.make_user("..") as dots:
        refused = await dots.post(JOBS, content=naming(rest, "one", "[{name: home}]"))
    assert "has no folder for a user" in refused.json()["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"subPath": "users"},
        {"hostPath": "relative"},
        {"hostPath": "/srv/../etc"},
        {"hostPath": "/"},
        {"claim": "Not-A-Claim"},
        {"claim": "c", "subPath": "../x"},
        {"claim": "c", "subPath": "{other}"},
        {"claim": "c", "subPath": "{user}/{user}"},
        {"claim": "c", "users": ["a b"]},
        {"claim": "c", "kind": "nfs"},
    ],
)
async def test_a_storage_that_could_never_be_mounted_is_refused(
    rest: Any, wrong: dict[str, Any]
) -> None:
    answer = await rest.client.put(f"{STORAGES}/one", json=wrong)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")
    assert (await rest.client.get(STORAGES)).json() == {"storages": [], "total": 0}


async def test_an_admin_is_told_of_users_who_do_not_exist(rest: Any) -> None:
    await rest.make_user("ann")
    body = {"claim": "c", "users": ["ann", "nobody", "*"], "virtualClusters": ["vision"]}
    answer = await rest.client.put(f"{STORAGES}/one", json=body)
    assert answer.status_code == 201
    message = answer.json()["message"]
    assert message == "The storage one is set. Unknown users: nobody."


async def test_users_see_only_what_they_may_use(rest: Any) -> None:
    await put(rest, "home", **HOME, default=True)
    await put(rest, "closed", claim="closed")
    await put(rest, "lab", claim="lab", virtualClusters=["default", "lab"])
    async with await rest.make_user("ann") as ann, await rest.make_user("bob") as bob:

        async def seen(client: Any, query: str = "") -> list[str]:
            answer = (await client.get(STORAGES + query)).json()
            assert answer["total"] == len(answer["storages"])
            return [each["name"] for each in answer["storages"]]

        assert await seen(rest.client) == ["closed", "home", "lab"]
        assert await seen(ann) == ["home", "lab"]
        assert await seen(ann, "?default=true") == ["home"]
        assert await seen(bob) == ["lab"]
        assert (await ann.get(f"{STORAGES}/home")).json()["subPath"] == "users/{user}"
        hidden = await bob.get(f"{STORAGES}/home")
        assert (hidden.status_code, hidden.json()["code"]) == (404, "NoStorageError")


async def test_each_change_is_in_the_audit_log(rest: Any) -> None:
    await put(rest, "home", **HOME)
    assert (await rest.client.delete(f"{STORAGES}/home")).status_code == 200
    assert (await rest.client.delete(f"{STORAGES}/home")).status_code == 404
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"][:2]
    assert [(each["action"], each["object"]) for each in entries] == [
        ("storage.remove", "home"),
        ("storage.set", "home"),
    ]
    assert entries[1]["detail"]["users"] == ["ann"]


async def test_an_admin_keeps_storages_on_the_command_line(rest: Any, tmp_path: Path) -> None:
    async def run(*words: str) -> Any:
        login = {"MUSTER_URL": rest.url, "MUSTER_TOKEN": rest.token}
        return await asyncio.to_thread(run_cli, tmp_path, *words, **login)

    await rest.make_user("ann")
    options = ("--claim", "home", "--sub-path", "users/{user}", "--user", "ann", "--default")
    assert (await run("storage", "set", "home", *options)).out == "The storage home is set.\n"
    closed = await run("storage", "set", "data", "--host-path", "/srv/data", "--read-only")
    assert "Only admins may use it" in closed.out
    lines = [line.split() for line in (await run("storage")).out.splitlines()]
    assert lines[1:] == [
        ["data", "yes", "folder", "/srv/data", "admins"],
        ["home", "yes", "claim", "home", "ann"],
    ]
    assert "users/{user}" in (await run("storage", "show", "home")).out
    assert (await run("storage", "remove", "home")).code == 0
    gone = await run("storage", "show", "home")
    assert (gone.code, "no storage home" in gone.err) == (4, True)
