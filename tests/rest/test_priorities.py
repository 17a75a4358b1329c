"""Users ask for priorities up to their caps; admins for any."""

from typing import Any

import pytest
from muster.errors import Rejected
from muster.protocol import parse_job
from rest.domain.callers import Caller
from rest.domain.virtual_clusters import check_priority

HIVED = "extras: {{hivedScheduler: {{jobPriorityClass: {0}}}}}\n"
OWN = "extras: {{muster: {{priority: {0}}}}}\n"
EVE = {"username": "eve", "password": "correct-horse"}
JOBS = "/api/v2/jobs"


def with_priority(rest: Any, name: str, priority: object) -> str:
    text = HIVED if isinstance(priority, str) else OWN
    file: str = rest.job_file(name)
    return file + ("" if priority is None else text.format(priority))


@pytest.mark.parametrize(
    ("caps", "allowed", "refused"),
    [
        ({}, ["prod", "test", "oppo", None, 100], ["crit", 101, 1000]),
        ({"default": 10}, ["test", "oppo", None, 0], ["prod", 11]),
        ({"default": 120, "*": 0}, ["crit"], [121]),
        ({"other": 1000, "*": -1}, ["oppo", -1], [None, 0]),
    ],
)
async def test_a_job_above_its_users_cap_is_refused_with_its_line(
    rest: Any, caps: dict[str, int], allowed: list[object], refused: list[object]
) -> None:
    made = await rest.client.post("/api/v2/users", json={**EVE, "maxPriority": caps})
    assert made.status_code == 201
    token = await rest.log_in("eve", EVE["password"])
    async with rest.with_token(token) as eve:
        for n, priority in enumerate(allowed):
            answer = await eve.post(JOBS, content=with_priority(rest, f"yes-{n}", priority))
            assert answer.status_code == 202, answer.text
        for n, priority in enumerate(refused):
            file = with_priority(rest, f"no-{n}", priority)
            answer = await eve.post(JOBS, content=file)
            refusal = answer.json()
            assert (answer.status_code, refusal["code"]) == (403, "ForbiddenUserError")
            assert "maxPriority" in refusal["message"]
            (problem,) = refusal["errors"]
            if priority is not None:
                assert problem["line"] == len(file.splitlines())
                assert problem["path"].startswith("extras.")
    answer = await rest.client.post(JOBS, content=with_priority(rest, "of-admin", 1000))
    assert answer.status_code == 202


async def test_an_admin_sets_caps_and_everybody_sees_them(rest: Any) -> None:
    eve = await rest.make_user("eve")
    async with eve:
        job = with_priority(rest, "urgent", "crit")
        assert (await eve.post(JOBS, content=job)).status_code == 403
        change = {"data": {"username": "eve", "maxPriority": {"default": 120}}}
        assert (await eve.put("/api/v2/users", json=change)).status_code == 403
        own = await eve.put("/api/v2/users/me", json={"maxPriority": {"default": 120}})
        assert own.status_code == 400
        assert (await rest.client.put("/api/v2/users", json=change)).status_code == 201
        assert (await eve.get("/api/v2/users/eve")).json()["maxPriority"] == {"default": 120}
        assert (await eve.post(JOBS, content=job)).status_code == 202
        other = {"data": {"username": "eve", "email": "eve@example.org"}}
        await rest.client.put("/api/v2/users", json=other)
        assert (await eve.get("/api/v2/users/eve")).json()["maxPriority"] == {"default": 120}
        for wrong in ({"default": 1001}, {"default": -2}, {"a b": 1}, {"default": "high"}):
            change = {"data": {"username": "eve", "maxPriority": wrong}}
            assert (await rest.client.put("/api/v2/users", json=change)).status_code == 400


def test_an_operator_lowers_the_cap_of_all() -> None:
    job = parse_job(
        b"protocolVersion: 2\nname: j\ntype: job\ntaskRoles: {w: {instances: 1, commands: ['true'],"
        b" dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0}}}\n"
        b"prerequisites: [{type: dockerimage, name: i, uri: none}]\n"
    )
    eve = Caller("eve", number=1, is_admin=False, is_application=False, token="t")
    check_priority(job, eve, 10)
    with pytest.raises(Rejected, match=r"at most priority -1 .* priority 10"):
        check_priority(job, eve, -1)


async def test_a_key_of_an_earlier_job_lets_no_other_file_pass(rest: Any) -> None:
    made = await rest.client.post("/api/v2/users", json={**EVE, "maxPriority": {"*": 0}})
    assert made.status_code == 201
    key = {"Idempotency-Key": "k"}
    async with rest.with_token(await rest.log_in("eve", EVE["password"])) as eve:
        low, high = with_priority(rest, "low", 0), with_priority(rest, "high", 1000)
        answers = [await eve.post(JOBS, content=low, headers=key) for _ in range(2)]
        assert [answer.json() for answer in answers] == [answers[0].json()] * 2
        assert (await eve.post(JOBS, content=high, headers=key)).status_code == 422
        no_priority = {**EVE, "maxPriority": {"*": -1}}
        no_priority.pop("password")
        lowered = await rest.client.put("/api/v2/users", json={"data": no_priority})
        assert lowered.status_code == 201
        again = await eve.post(JOBS, content=low, headers=key)
        assert (again.status_code, again.json()) == (202, answers[0].json())
        assert len((await eve.get(JOBS)).json()) == 1
