"""Jobs whose claims are not bound, on a real API server with the rights of the manifests."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_muster import HOST_JOBS, JOBS, bind_a_claim, claims_path, grant, rest_settings
from kube_plane import KubePlane
from scheduler_watched import until

pytestmark = pytest.mark.k8s

NOBODY = "https://127.0.0.1:1"
PLACE = "extras.storages[0]"


@pytest.fixture
async def rest(
    start_rest: Callable[..., Any], kube_plane: KubePlane, tmp_path: Path
) -> AsyncIterator[Any]:
    grant(kube_plane)
    async with start_rest(**rest_settings(kube_plane, tmp_path / "account")) as running:
        yield running


async def set_storage(rest: Any, claim: str) -> str:
    answer = await rest.client.put(f"/api/v2/storages/{claim}", json={"claim": claim})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["message"])


async def submit(rest: Any, storage: str, instances: int = 1) -> Any:
    file = rest.job_file(storage).replace("instances: 2", f"instances: {instances}")
    extras = f"extras:\n  storages: [{{name: {storage}}}]\n"
    return await rest.client.post("/api/v2/jobs", content=file + extras)


def unanswered(rest: Any) -> float:
    labels = {"peer": "kubernetes"}
    found = rest.runtime.registry.get_sample_value("muster_rest_peer_failures_total", labels)
    return float(found or 0)


async def test_a_job_with_a_bound_claim_is_accepted(
    rest: Any, kube_plane: KubePlane, tmp_path: Path
) -> None:
    await bind_a_claim(kube_plane, "bound", tmp_path)
    await set_storage(rest, "bound")
    answer = await submit(rest, "bound")
    assert answer.status_code == 202, answer.text
    assert unanswered(rest) == 0


async def test_a_claim_for_one_node_is_named_to_the_administrator_and_jobs_are_accepted(
    rest: Any, kube_plane: KubePlane, tmp_path: Path
) -> None:
    await bind_a_claim(kube_plane, "once", tmp_path, mode="ReadWriteOnce")
    said = await set_storage(rest, "once")
    assert "in the namespace muster-jobs has the access mode ReadWriteOnce" in said
    assert (await submit(rest, "once")).status_code == 202


async def test_a_storage_without_a_claim_is_a_hint_and_a_warning_with_its_line(rest: Any) -> None:
    folder = {"hostPath": "/srv/folder"}
    answer = await rest.client.put("/api/v2/storages/folder", json=folder)
    assert "no claim, so tasks on Kubernetes nodes can't mount it" in answer.json()["message"]
    answer = await submit(rest, "folder")
    assert answer.status_code == 202, answer.text
    (warning,) = answer.json()["warnings"]
    assert (warning["path"], warning["line"]) == (PLACE, 13)
    assert "can't mount the storage folder on Kubernetes nodes" in warning["message"]


async def test_an_image_is_no_warning_where_all_nodes_pull_it(rest: Any) -> None:
    answer = await rest.client.post("/api/v2/jobs", content=rest.job_file("plain"))
    assert (answer.status_code, answer.json()["warnings"]) == (202, [])


async def test_rest_asks_for_nothing_but_claims(rest: Any, kube_plane: KubePlane) -> None:
    await set_storage(rest, "asked")
    assert (await submit(rest, "asked")).status_code == 400
    account = "system:serviceaccount:muster-system:rest"

    def events() -> list[dict[str, Any]]:
        return [event for event in kube_plane.audit() if event["user"]["username"] == account]

    await until(lambda: any(event["objectRef"]["name"] == "asked" for event in events()))
    asked = {(event["verb"], event["objectRef"]["resource"]) for event in events()}
    assert asked == {("get", "persistentvolumeclaims")}
    assert {event["responseStatus"]["code"] for event in events()} <= {200, 404}


async def test_a_job_without_its_claim_is_refused_with_the_reason(rest: Any) -> None:
    await set_storage(rest, "absent")
    answer = await submit(rest, "absent")
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidProtocolError")
    (problem,) = answer.json()["errors"]
    assert (problem["path"], problem["line"]) == (PLACE, 13)
    assert "absent does not exist in the namespace muster-jobs: an op" in problem["message"]


async def test_a_claim_that_waits_for_a_pod_is_refused_with_the_fix(
    rest: Any, kube_plane: KubePlane
) -> None:
    mode = {"provisioner": "example.org/none", "volumeBindingMode": "WaitForFirstConsumer"}
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    assert kube_plane.ask("POST", classes, {"metadata": {"name": "late"}, **mode})[0] == 201
    claim = {
        "metadata": {"name": "late"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "late",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    assert kube_plane.ask("POST", claims_path(JOBS), claim)[0] == 201
    await set_storage(rest, "late")
    answer = await submit(rest, "late")
    assert answer.status_code == 400
    (problem,) = answer.json()["errors"]
    assert "is Pending, not Bound" in problem["message"]
    assert "makes it with a class of the mode Immediate" in problem["message"]


async def test_a_gang_needs_the_claim_in_its_own_namespace(
    rest: Any, kube_plane: KubePlane, tmp_path: Path
) -> None:
    await bind_a_claim(kube_plane, "single", tmp_path)
    said = await set_storage(rest, "single")
    assert said.count("The claim single does not exist in the namespace muster-jobs-host") == 1
    assert (await submit(rest, "single", 2)).status_code == 400
    await bind_a_claim(kube_plane, "single", tmp_path, HOST_JOBS)
    assert (await submit(rest, "single", 2)).status_code == 202
    assert "claim" not in await set_storage(rest, "single")


async def test_a_default_storage_without_its_claim_is_refused_as_well(rest: Any) -> None:
    storage = {"claim": "gone", "default": True}
    assert (await rest.client.put("/api/v2/storages/gone", json=storage)).status_code == 201
    file = rest.job_file("default") + "extras: {storages: []}\n"
    answer = await rest.client.post("/api/v2/jobs", content=file)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "extras.storages")


@pytest.mark.parametrize("way", ["away", "forbidden"])
async def test_without_an_answer_of_kubernetes_jobs_are_accepted(
    start_rest: Callable[..., Any], kube_plane: KubePlane, tmp_path: Path, way: str
) -> None:
    grant(kube_plane)
    settings = rest_settings(kube_plane, tmp_path / "account")
    if way == "away":
        settings |= {"kube_api_url": NOBODY}
    else:
        (settings["kube_service_account"] / "token").write_text("of-nobody")
    async with start_rest(**settings) as rest:
        assert "does not tell whether claims are bound" in await set_storage(rest, "unknown")
        assert (await submit(rest, "unknown")).status_code == 202
        assert unanswered(rest) == 2
