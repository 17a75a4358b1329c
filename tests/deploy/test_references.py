"""The ConfigMaps and Secrets that pods need and a person makes."""

from dataclasses import replace

import pytest
from checked_cluster import GOOD, IMAGES, named
from cli.deploy.findings import Level, Plan, findings
from cli.deploy.references import to_be_made
from manifests import Json
from rendering import K8S, render

AUTHORITIES = ("ConfigMap", "muster-system", "authorities")
MINE = ("Secret", "muster-system", "mine")


def a_job(volume: Json | None = None, variables: Json | None = None) -> Json:
    """The Job `bus`, whose pod has a volume, or a container with variables."""
    pod = {"volumes": [volume or {"emptyDir": {}}], "containers": [variables or {}]}
    space = {"namespace": "muster-system"}
    return named("Job", "bus", metadata=space, spec={"template": {"spec": pod}})


def test_what_a_pod_needs_is_found_once() -> None:
    body = a_job({"configMap": {"name": "authorities"}})
    pod = body["spec"]["template"]["spec"]
    pod["initContainers"] = [{"envFrom": [{"configMapRef": {"name": "authorities"}}]}]
    assert to_be_made([body]) == {AUTHORITIES: ["Job bus"]}


@pytest.mark.parametrize(
    "body",
    [
        a_job({"secret": {"secretName": "mine"}}),
        a_job({"projected": {"sources": [{"secret": {"name": "mine"}}]}}),
        a_job(None, {"envFrom": [{"secretRef": {"name": "mine"}}]}),
        a_job(None, {"env": [{"valueFrom": {"secretKeyRef": {"name": "mine", "key": "a"}}}]}),
    ],
)
def test_each_way_to_need_a_secret_counts(body: Json) -> None:
    assert to_be_made([body]) == {MINE: ["Job bus"]}
    assert to_be_made([body, named("Secret", "mine")]) == {MINE: ["Job bus"]}  # elsewhere
    there = named("Secret", "mine", metadata={"namespace": "muster-system"})
    assert to_be_made([body, there]) == {}


def test_what_images_are_pulled_with_counts_too() -> None:
    space = {"namespace": "muster-system"}
    pulls = {"imagePullSecrets": [{"name": "mine"}]}
    body = a_job()
    body["spec"]["template"]["spec"] |= pulls
    assert to_be_made([body]) == {MINE: ["Job bus"]}
    default = named("ServiceAccount", "default", metadata=space) | pulls
    assert to_be_made([a_job(), default]) == {MINE: ["Job bus"]}
    body["spec"]["template"]["spec"] |= {"imagePullSecrets": [{"name": "other"}]}
    assert [name for _, _, name in to_be_made([body, default])] == ["other"]  # as Kubernetes does
    body = a_job()
    body["spec"]["template"]["spec"]["serviceAccountName"] = "rest"
    assert to_be_made([body, default]) == {}


@pytest.mark.parametrize(
    ("value", "spaces"), [("true", ["muster-jobs", "muster-jobs-host"]), ("false", [])]
)
def test_pods_of_jobs_need_a_secret_to_pull_a_private_step_image(
    value: str, spaces: list[str]
) -> None:
    settings = named("ConfigMap", "settings", data={"MUSTER_KUBE_STEP_PULL_SECRET": value})
    wanted = {("Secret", space, "muster-step"): ["pods of jobs"] for space in spaces}
    assert to_be_made([settings]) == wanted


@pytest.mark.parametrize(
    "body",
    [
        a_job({"secret": {"secretName": "mine", "optional": True}}),
        a_job(None, {"envFrom": [{"secretRef": {"name": "mine", "optional": True}}]}),
        a_job({"secret": {"secretName": "bus-users"}}),
        a_job({"configMap": {"name": "kube-root-ca.crt"}}),
    ],
)
def test_what_may_be_absent_or_is_made_anyway_is_not_needed(body: Json) -> None:
    assert to_be_made([body]) == {}


def test_what_a_person_has_not_made_is_a_warning_until_it_is_there() -> None:
    plan = Plan([a_job({"configMap": {"name": "authorities"}})], IMAGES)
    (warned,) = (each for each in findings(GOOD, plan) if each.subject == "pods")
    text = "ConfigMap authorities is neither in the overlay nor in muster-system, for Job bus"
    assert (warned.level, warned.text) == (Level.WARNING, text)
    found = findings(replace(GOOD, made=[AUTHORITIES]), plan)
    assert [each for each in found if each.subject == "pods"] == []


@pytest.mark.k8s
@pytest.mark.parametrize(("overlay", "needed"), [("minimal", []), ("production", [AUTHORITIES])])
def test_the_overlays_need_only_what_the_page_tells(
    overlay: str, needed: list[tuple[str, str, str]]
) -> None:
    assert list(to_be_made(render(K8S / "overlays" / overlay))) == needed
