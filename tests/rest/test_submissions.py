"""Jobs are submitted: each once, each answered for itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from muster.contracts.jobs import JobSpec
from muster.contracts.secrets import JobSecrets
from muster.errors import Transient
from muster.protocol import parse_job
from muster.sealing import make_private_key, public_key_of, unseal
from prometheus_client import CollectorRegistry
from rest.handlers.submit import Submission, Submissions
from rest.metrics import RestMetrics


async def test_a_name_that_is_taken_is_409(rest: Any) -> None:
    await rest.submit("twice")
    answer = await rest.submit("twice")
    assert answer.status_code == 409
    assert answer.json()["code"] == "ConflictJobError"
    other = await rest.make_user("other")
    async with other:
        theirs = await other.post("/api/v2/jobs", content=rest.job_file("twice"))
        assert theirs.status_code == 202


async def test_many_submissions_at_once_are_each_answered_for_themselves(rest: Any) -> None:
    answers = await asyncio.gather(*(rest.submit(f"many-{n % 20}") for n in range(60)))
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [202] * 20 + [409] * 40
    for n in range(20):
        mine = [a.status_code for i, a in enumerate(answers) if i % 20 == n]
        assert sorted(mine) == [202, 409, 409]


async def test_an_idempotency_key_gives_the_same_answer_and_makes_one_job(rest: Any) -> None:
    key = {"Idempotency-Key": "k1"}
    _, *answers = await asyncio.gather(
        rest.submit("first"),  # while it is written the others wait, and so stand together
        *(rest.submit("once", **key) for _ in range(20)),
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert len((await rest.client.get("/api/v2/jobs")).json()) == 2
    other_body = await rest.submit("another", **key)
    assert other_body.status_code == 422
    assert other_body.json()["code"] == "IdempotencyKeyError"
    user = await rest.make_user("second")
    async with user:
        theirs = await user.post(
            "/api/v2/jobs", content=rest.job_file("once"), headers={"Idempotency-Key": "k1"}
        )
        assert theirs.status_code == 202


async def test_a_key_of_a_refused_submission_may_be_used_again(rest: Any) -> None:
    await rest.submit("taken")
    refused = await rest.submit("taken", **{"Idempotency-Key": "k2"})
    assert refused.status_code == 409
    fixed = await rest.submit("free", **{"Idempotency-Key": "k2"})
    assert fixed.status_code == 202


async def test_a_key_that_is_empty_or_too_long_is_refused(rest: Any) -> None:
    for key in ("", "k" * 256):
        answer = await rest.submit("keyed", **{"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")
        assert [problem["path"] for problem in answer.json()["errors"]] == ["idempotency-key"]
    assert (await rest.submit("keyed", **{"Idempotency-Key": "k" * 255})).status_code == 202


async def test_two_replicas_keep_one_promise(start_rest: Any) -> None:
    async with start_rest() as one, start_rest() as two:
        key = {"Idempotency-Key": "both"}
        answers = await asyncio.gather(
            *((one, two)[n % 2].submit("shared", **key) for n in range(20)),
            *((one, two)[n % 2].submit(f"name-{n // 2}") for n in range(20)),
        )
        assert {a.status_code for a in answers[:20]} == {202}
        assert sorted(a.status_code for a in answers[20:]) == [202] * 10 + [409] * 10
        assert len((await two.client.get("/api/v2/jobs")).json()) == 11
        await one.client.put("/api/v2/jobs/admin~shared/executionType", json={"value": "STOP"})
        content = (await two.client.get("/api/v2/jobs/admin~shared")).json()
        assert content["jobStatus"]["state"] == "STOPPING"


async def test_what_waits_to_be_written_is_bounded(start_rest: Any) -> None:
    slow = {"submit_timeout_s": 120.0, "idle_transaction_s": 120.0}
    async with start_rest(submit_queue_bytes=2000, **slow) as rest:
        async with rest.runtime.pool.acquire() as conn, conn.transaction():
            await conn.execute("LOCK TABLE job IN SHARE MODE")  # nothing is written meanwhile
            flood = [asyncio.create_task(rest.submit(f"flood-{n}")) for n in range(60)]
            await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        answers = await asyncio.gather(*flood)
        codes = {answer.status_code for answer in answers}
        assert codes == {202, 503}
        assert all(a.headers["retry-after"] for a in answers if a.status_code == 503)
        accepted = [answer for answer in answers if answer.status_code == 202]
        assert len((await rest.client.get("/api/v2/jobs")).json()) == len(accepted)
        assert (await rest.submit("afterwards")).status_code == 202


async def test_a_wrong_file_is_refused_with_lines(rest: Any) -> None:
    content = rest.job_file("bad").replace("gpu: 1", "gpus: 1").replace("type: job", "type: x")
    answer = await rest.client.post("/api/v2/jobs", content=content)
    assert answer.status_code == 400
    body = answer.json()
    assert body["code"] == "InvalidProtocolError"
    assert [(e["path"], e["line"]) for e in body["errors"]] == [
        ("type", 3),
        ("taskRoles.worker.resourcePerInstance.gpu", 10),
        ("taskRoles.worker.resourcePerInstance.gpus", 10),
    ]


async def test_a_job_with_secrets_is_refused_where_rest_has_no_key(rest: Any) -> None:
    content = rest.job_file("secret").replace("train.py", "train.py <% $secrets.key %>")
    content += "secrets: {key: marker-in-clear}\n"
    answer = await rest.client.post(
        "/api/v2/jobs", content=content, headers={"Idempotency-Key": "s"}
    )
    assert answer.status_code == 501
    assert "MUSTER_SECRETS_PUBLIC_KEY" in answer.json()["message"]
    assert "marker-in-clear" not in answer.text
    assert "marker-in-clear" not in await stored(rest)


async def test_secrets_are_kept_as_only_the_launcher_reads_them(start_rest: Any) -> None:
    key = make_private_key()
    async with start_rest(secrets_public_key=public_key_of(key)) as rest:
        content = rest.job_file("secret").replace("train.py", "train.py <% $secrets.key %>")
        content += "secrets: {key: marker-in-clear, unused: marker-in-clear}\n"
        answer = await rest.client.post("/api/v2/jobs", content=content)
        assert answer.status_code == 202, answer.text
        assert "marker-in-clear" not in answer.text + await stored(rest)
        shown = (await rest.client.get("/api/v2/jobs/admin~secret/config")).text
        assert shown == content.replace("{key", '{"key"').replace(" unused", ' "unused"').replace(
            "marker-in-clear", '"******"'
        )
        row = await rest.runtime.pool.fetchrow(
            "SELECT id, spec FROM job JOIN job_file ON job = id WHERE name = 'secret'"
        )
        sealed = JobSpec.model_validate_json(row["spec"]).secrets
        opened = JobSecrets.model_validate_json(unseal(sealed or "", [key]))
        assert opened == JobSecrets(job=row["id"], values={"$secrets.key": "marker-in-clear"})


async def stored(rest: Any) -> str:
    """All rows that a submission writes."""
    found = ""
    for table in ("job", "job_file", "idempotency", "notice", "subject", "audit"):
        rows = await rest.runtime.pool.fetch(f"SELECT * FROM {table}")
        found += str([dict(row) for row in rows])
    return found


async def test_connections_that_the_database_ends_lose_no_job(start_rest: Any) -> None:
    async with start_rest(token_cache_s=60.0) as rest:  # the caller is known without a database
        await rest.submit("before")
        await rest.runtime.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'muster-rest' AND pid <> pg_backend_pid()"
        )
        after = await rest.submit("after")
        assert after.status_code == 202

        async def names() -> list[str]:
            answer = await rest.client.get("/api/v2/jobs")
            return [each["name"] for each in answer.json()] if answer.is_success else []

        await rest.eventually(names, ["after", "before"])


async def test_a_commit_whose_answer_was_lost_is_no_name_that_is_taken(
    rest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = rest.runtime.relay
    commit, tries = relay.transaction, []

    @asynccontextmanager
    async def lossy() -> AsyncIterator[Any]:
        async with commit() as conn:
            yield conn
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError("lost after the commit")

    monkeypatch.setattr(relay, "transaction", lossy)
    answers = await asyncio.gather(
        rest.submit("plain"), rest.submit("keyed", **{"Idempotency-Key": "k"})
    )
    assert [answer.status_code for answer in answers] == [202, 202]
    assert [answer.json()["name"] for answer in answers] == ["admin~plain", "admin~keyed"]
    assert (await rest.submit("plain")).status_code == 409
    again = await rest.submit("keyed", **{"Idempotency-Key": "k"})
    assert (again.status_code, again.text) == (202, answers[1].text)
    assert len((await rest.client.get("/api/v2/jobs")).json()) == 2
    assert len(await rest.messages(await rest.job_id("plain"))) == 1


async def test_what_comes_after_the_end_is_refused_at_once(rest: Any) -> None:
    metrics = RestMetrics(CollectorRegistry())
    submissions = Submissions(rest.runtime.relay, rest.runtime.settings, metrics)
    running = asyncio.create_task(submissions.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    late = Submission("admin", "", parse_job(rest.job_file("late").encode()), None, None)
    with pytest.raises(Transient, match="stopping"):
        await submissions.submit(late)
