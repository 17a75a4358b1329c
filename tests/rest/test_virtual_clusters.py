"""The Scheduler knows the virtual clusters; REST checks names by its last answer,
and shows its figures in OpenPAI's shape.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

VISION = {
    "cells": [{"quota": "v100-rack/v100-node", "count": 2, "bound": 1}],
    "pins": ["lab"],
    "gpus": {
        "quota": 16,
        "guaranteed": 6,
        "opportunistic": 4,
        "free": 8,
        "usable": 4,
        "lent": 2,
        "borrowed": 2,
    },
    "gpuTypes": ["v100"],
    "cpu": {"quota": 128, "used": 40},
    "memoryMB": {"quota": 1000, "used": 300},
}
NLP = {
    "cells": [],
    "pins": [],
    "gpus": {
        "quota": 0,
        "guaranteed": 0,
        "opportunistic": 0,
        "free": 0,
        "usable": 0,
        "lent": 0,
        "borrowed": 0,
    },
    "gpuTypes": ["a100", "k80"],
}
CLUSTERS = {
    "asOf": 12,
    "gpuTypes": ["a100", "k80", "v100"],
    "virtualClusters": {"vision": VISION, "nlp": NLP},
}
PATH = "/virtual-clusters"


def job_file(rest: Any, name: str, cluster: str, **muster: Any) -> str:
    fields = ", ".join(f"{key}: {value}" for key, value in muster.items())
    more = f"defaults: {{virtualCluster: {cluster}}}\nextras: {{muster: {{{fields}}}}}\n"
    return str(rest.job_file(name)) + more


async def submit(client: Any, content: str, **headers: str) -> Any:
    return await client.post("/api/v2/jobs", content=content, headers=headers)


async def until_known(rest: Any) -> None:
    """Wait until REST has the virtual clusters."""

    async def names() -> set[str]:
        answer = await rest.client.get(f"/api/v2{PATH}")
        return set(answer.json())

    await rest.eventually(names, {"vision", "nlp"})


@asynccontextmanager
async def knowing(start_rest: Any, scheduler: Any) -> AsyncIterator[Any]:
    """A REST that has them."""
    scheduler.answers[PATH] = CLUSTERS
    async with start_rest(scheduler_url=scheduler.url) as rest:
        await until_known(rest)
        yield rest


async def test_they_are_shown_as_openpai_does_with_the_schedulers_figures(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers[PATH] = CLUSTERS
    async with start_rest(scheduler_url=scheduler.url) as rest:
        shown = (await rest.client.get(f"/api/v2{PATH}")).json()
        assert list(shown) == ["nlp", "vision"]
        vision = shown["vision"]
        assert vision["resourcesTotal"] == {
            "cpu": 128,
            "memory": 1000,
            "gpu": 16,
            "vCores": 128,
            "GPUs": 16,
        }
        assert vision["resourcesUsed"]["GPUs"] == 12
        assert vision["resourcesUsed"]["cpu"] == 40
        assert vision["usedCapacity"] == 75
        assert {name: vision[name] for name in ("cells", "pins", "gpus", "gpuTypes")} == {
            name: VISION[name] for name in ("cells", "pins", "gpus", "gpuTypes")
        }
        assert vision["asOf"] == 12
        assert shown["nlp"]["resourcesTotal"]["cpu"] is None
        assert (await rest.client.get(f"/api/v2{PATH}/vision")).json() == vision
        missing = await rest.client.get(f"/api/v2{PATH}/vc9")
        assert missing.status_code == 404
        assert "nlp, vision" in missing.json()["message"]
        assert (await rest.client.get(f"/api/v2{PATH}/a.b")).status_code == 400
        whole = (await rest.client.get("/api/v2/cluster")).json()
        assert (whole["asOf"], whole["virtualClusters"]) == (12, shown)
        counts = dict.fromkeys(("total", "ready", "gpusReady", "troubled"), 0)
        assert whole["nodes"] == counts | {"inTrouble": []}


async def test_a_job_for_a_virtual_cluster_that_is_not_there_is_refused_with_those_that_are(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        refused = await submit(rest.client, job_file(rest, "lost", "visoin"))
        assert (refused.status_code, refused.json()["code"]) == (404, "NoVirtualClusterError")
        (problem,) = refused.json()["errors"]
        assert (problem["path"], problem["line"]) == ("defaults.virtualCluster", 12)
        assert "nlp, vision" in problem["message"]
        accepted = await submit(rest.client, job_file(rest, "found", "vision"))
        assert accepted.status_code == 202
        assert [w["path"] for w in accepted.json()["warnings"]] == ["prerequisites[0].uri"]


@pytest.mark.parametrize(
    ("instances", "options", "why"),
    [(2, "", "more than one task"), (1, "infiniband: true", "`rdma`"), (1, "", None)],
)
async def test_a_job_that_its_virtual_cluster_may_not_run_on_kubernetes_is_refused(
    start_rest: Any, instances: int, options: str, why: str | None
) -> None:
    async with start_rest(kube_host_network="vision, nlp") as rest:
        job = job_file(rest, "wide", "default").replace(
            "    instances: 2\n",
            f"    instances: {instances}\n    extraContainerOptions: {{{options}}}\n",
        )
        answer = await submit(rest.client, job)
        if why is None:
            assert answer.status_code == 202
            return
        assert (answer.status_code, answer.json()["code"]) == (403, "ForbiddenUserError")
        assert why in answer.json()["message"]
        assert "that may: nlp, vision. An operator can add" in answer.json()["message"]
        (problem,) = answer.json()["errors"]
        assert problem["path"] == "defaults.virtualCluster"
    for number, permitted in enumerate((None, "*", "vision,default")):
        async with start_rest(kube_host_network=permitted) as rest:
            answer = await submit(rest.client, job.replace("wide", f"wide-{number}"))
            assert answer.status_code == 202


@pytest.mark.parametrize("where", [{"virtualCluster": ["visoin"]}, {"maxPriority": {"visoin": 5}}])
async def test_a_user_of_a_misspelt_virtual_cluster_is_refused(
    start_rest: Any, scheduler: Any, where: dict[str, Any]
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        async with await rest.make_user("ann", maxPriority={"*": 9, "vision": 10}):
            body = {"data": {"username": "ann"} | where}
            refused = await rest.client.put("/api/v2/users", json=body)
        assert (refused.status_code, refused.json()["code"]) == (404, "NoVirtualClusterError")
        user = {"username": "bob", "password": "a-password-for-tests"} | where
        assert (await rest.client.post("/api/v2/users", json=user)).status_code == 404


async def test_a_subscription_to_a_misspelt_virtual_cluster_is_refused(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        for name, status in (("visoin", 404), ("vision", 201)):
            hook = {"events": ["job-failed"], "webhookUrl": "https://example.org/hook"}
            hook |= {"filter": {"virtualClusters": [name]}}
            made = await rest.client.post("/api/v2/alerts/subscriptions", json=hook)
            assert made.status_code == status, made.text
            assert status == 201 or "nlp, vision" in made.json()["message"]
        path = f"/api/v2/alerts/subscriptions/{made.json()['id']}"
        changed = await rest.client.put(path, json=hook | {"filter": {"virtualClusters": ["nl"]}})
        assert (changed.status_code, changed.json()["code"]) == (404, "NoVirtualClusterError")
        assert (await rest.client.get(path)).json()["filter"]["virtualClusters"] == ["vision"]


async def test_a_new_virtual_cluster_takes_jobs_at_once(start_rest: Any, scheduler: Any) -> None:
    scheduler.answers[PATH] = CLUSTERS
    async with start_rest(
        scheduler_url=scheduler.url, virtual_clusters_every_s=600, virtual_clusters_again_s=0.001
    ) as rest:
        await until_known(rest)
        assert (await submit(rest.client, job_file(rest, "j", "speech"))).status_code == 404
        scheduler.answers[PATH] = CLUSTERS | {"virtualClusters": {"speech": NLP}}
        assert (await submit(rest.client, job_file(rest, "j", "speech"))).status_code == 202


async def test_while_the_scheduler_is_away_the_last_answer_counts(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers[PATH] = CLUSTERS
    async with start_rest(scheduler_url=scheduler.url, virtual_clusters_again_s=0.001) as rest:
        await until_known(rest)
        for answer in (b"standby", b"no json", {}, None):
            scheduler.answers[PATH] = answer
            name = f"while-{len(scheduler.seen)}"
            assert (await submit(rest.client, job_file(rest, name, "vision"))).status_code == 202
            assert (await submit(rest.client, job_file(rest, name, "vc9"))).status_code == 404
            shown = await rest.client.get(f"/api/v2{PATH}/vision")
            assert (shown.status_code, shown.json()["asOf"]) == (200, 12)


async def test_before_the_schedulers_first_answer_jobs_are_accepted_unchecked(
    start_rest: Any, scheduler: Any
) -> None:
    scheduler.answers[PATH] = b"standby"
    async with start_rest(scheduler_url=scheduler.url) as rest:
        accepted = await submit(rest.client, job_file(rest, "early", "vision"))
        assert accepted.status_code == 202
        (warning,) = (w for w in accepted.json()["warnings"] if "was not checked" in w["message"])
        assert warning["path"] == "defaults.virtualCluster"
        assert (await rest.client.get(f"/api/v2{PATH}")).status_code == 503


async def test_without_a_scheduler_to_ask_there_is_nothing_to_show(rest: Any) -> None:
    for path in (PATH, f"{PATH}/default", "/cluster"):
        assert (await rest.client.get(f"/api/v2{path}")).status_code == 501


async def test_users_use_the_virtual_clusters_that_they_are_given(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        body = {"username": "bob", "password": "correct-horse", "virtualCluster": ["vc9"]}
        assert (await rest.client.post("/api/v2/users", json=body)).status_code == 404
        async with await rest.make_user("ann") as ann:
            refused = await submit(ann, job_file(rest, "j", "vision"))
            assert (refused.status_code, refused.json()["code"]) == (403, "ForbiddenUserError")
            assert refused.json()["errors"][0]["path"] == "defaults.virtualCluster"
            for names, status in ((["vc9"], 404), (["vision", "nlp"], 201)):
                change = {"data": {"username": "ann", "virtualCluster": names}}
                answer = await rest.client.put("/api/v2/users", json=change)
                assert answer.status_code == status
            assert (await submit(ann, job_file(rest, "j", "vision"))).status_code == 202
            mine = (await ann.get("/api/v2/users/ann")).json()
            assert mine["virtualCluster"] == ["vision", "nlp"]


async def test_a_refusal_without_a_choice_says_who_can_help(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        async with await rest.make_user("ann") as ann:
            change = {"data": {"username": "ann", "virtualCluster": []}}
            assert (await rest.client.put("/api/v2/users", json=change)).status_code == 201
            refused = (await submit(ann, job_file(rest, "j", "vision"))).json()
            assert refused["message"].endswith("; ask an administrator to let you use one.")
        scheduler.answers[PATH] = CLUSTERS | {"asOf": 13, "gpuTypes": [], "virtualClusters": {}}

        async def message() -> str:
            answer = await rest.client.get(f"/api/v2{PATH}/vision")
            return str(answer.json().get("message"))

        text = "There is no virtual cluster vision; there are none yet: an administrator adds them"
        await rest.eventually(message, f"{text} to the cluster file.")
        (problem,) = (await submit(rest.client, job_file(rest, "j", "vision"))).json()["errors"]
        assert "there are none yet: an administrator adds" in problem["message"]


async def test_gpu_types_and_pins_that_cannot_be_are_refused_with_their_place(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        for fields, priority, message in (
            ("gpuTypes: [v1oo]", 10, "is no GPU type here; use a100, k80, v100"),
            ("gpuTypes: [v1oo]", -1, "is no GPU type here; use a100, k80, v100"),
            ("gpuTypes: [a100]", 10, "is not in the virtual cluster vision, which has v100"),
            ("pin: lap", 10, "is no pin of the virtual cluster vision, which has lab"),
        ):
            roles = f"{{worker: {{{fields}}}}}"
            content = job_file(rest, "odd", "vision", taskRoles=roles, priority=priority)
            refused = await submit(rest.client, content)
            assert (refused.status_code, refused.json()["code"]) == (400, "InvalidProtocolError")
            (problem,) = refused.json()["errors"]
            assert problem["message"] == message
            assert problem["line"] == 13
        for fields, priority in (
            ("gpuTypes: [v100]", 10),
            ("gpuTypes: [a100]", -1),
            ("pin: lab", 10),
        ):
            roles = f"{{worker: {{{fields}}}}}"
            name = f"good-{len(fields)}-{priority}"
            content = job_file(rest, name, "vision", taskRoles=roles, priority=priority)
            assert (await submit(rest.client, content)).status_code == 202
        roles = "{worker: {gpuTypes: [a100, v100]}}"
        accepted = await submit(rest.client, job_file(rest, "both", "vision", taskRoles=roles))
        messages = [w["message"] for w in accepted.json()["warnings"]]
        assert "has no effect: the virtual cluster vision has v100" in messages


async def test_a_submission_that_is_sent_again_is_answered_as_it_was(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        key = {"Idempotency-Key": "k"}
        first = await submit(rest.client, job_file(rest, "once", "vision"), **key)
        scheduler.answers[PATH] = CLUSTERS | {"virtualClusters": {}}

        async def names() -> list[str]:
            return list((await rest.client.get(f"/api/v2{PATH}")).json())

        await rest.eventually(names, [])
        again = await submit(rest.client, job_file(rest, "once", "vision"), **key)
        assert (again.status_code, again.json()) == (202, first.json())
        other = await submit(rest.client, job_file(rest, "twice", "vision"), **key)
        assert other.status_code == 422


async def test_an_admin_is_told_of_those_of_a_storage_that_do_not_exist(
    start_rest: Any, scheduler: Any
) -> None:
    async with knowing(start_rest, scheduler) as rest:
        body = {"claim": "c", "virtualClusters": ["visoin", "nlp", "speech"]}
        answer = await rest.client.put("/api/v2/storages/one", json=body)
        assert answer.status_code == 201
        assert answer.json()["message"] == (
            "The storage one is set."
            " Unknown virtual clusters: speech, visoin; there are nlp, vision."
        )
