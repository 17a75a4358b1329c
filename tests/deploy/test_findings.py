"""What a check of a cluster finds."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from checked_cluster import AGENT, DIRECT, GOOD, IMAGES, NOW, PLAN, a_lease, a_node, named
from cli.deploy.findings import Finding, Level, Plan, Right, findings, rights
from cli.deploy.objects import Images
from manifests import Json

NVIDIA = named("RuntimeClass", "nvidia")
OF_CLASS = named(
    "DaemonSet",
    "runtime-agent",
    spec={"template": {"spec": AGENT | {"runtimeClassName": "nvidia"}}},
)
QUOTA = named("ResourceQuota", "small", metadata={"namespace": "muster-jobs"})
LOW = named(
    "Namespace",
    "muster-system",
    metadata={"labels": {"pod-security.kubernetes.io/enforce": "baseline"}},
)
PRIVILEGED = named(
    "Namespace",
    "muster-system",
    metadata={"labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
)


MONITOR = named("PodMonitor", "muster") | {"apiVersion": "monitoring.coreos.com/v1"}
NETWORKS = named("ConfigMap", "settings", data={"MUSTER_AGENT_NETWORKS": "10.0.0.0/8, fd00::/8"})
NO_NETWORK = named("ConfigMap", "settings", data={"MUSTER_AGENT_NETWORKS": "10.0.0.1/8"})
ONLY = "muster/only=true:NoSchedule"
TOLERANT = named("ConfigMap", "settings", data={"MUSTER_KUBE_TOLERATED_TAINTS": "team"})


def tainted(name: str, taint: str) -> Json:
    """A node with a taint, as kubectl writes it."""
    pair, _, effect = taint.partition(":")
    key, _, value = pair.partition("=")
    return a_node(name) | {"spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}


def at(name: str, *addresses: str) -> Json:
    """A node with these addresses, of one kind, and with a name and a public one."""
    node = a_node(name)
    others = [("Hostname", name), ("ExternalIP", "203.0.113.7")]
    found = [*others, *(("InternalIP", each) for each in addresses)]
    node["status"]["addresses"] = [{"type": kind, "address": each} for kind, each in found]
    return node


def of(found: Sequence[Finding], subject: str) -> list[tuple[Level, str]]:
    """The findings about a subject."""
    return [(each.level, each.text) for each in found if each.subject == subject]


def test_an_address_in_a_network_of_agents_is_no_finding() -> None:
    nodes = [at("gpu-1", "10.1.2.3", "2001:db8::1"), at("gpu-2", "fd00::2"), a_node("gpu-3")]
    found = findings(replace(GOOD, nodes=nodes), Plan([NETWORKS], IMAGES))
    assert of(found, "networks") == []


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("MUSTER_SMPT_HOST", "Did you mean MUSTER_SMTP_HOST?"),
        ("MUSTER_LEASE_S", "Did you mean MUSTER_LEASE_TIMEOUT_S?"),
        ("MUSTER_ZZZZZZZZZZZZZZZZZZ", "docs/settings.md has all of them."),
    ],
)
def test_a_misspelt_setting_is_named_with_the_one_that_is_meant(name: str, fix: str) -> None:
    data = {name: "1", "MUSTER_SMTP_PORT": "25", "HTTPS_PROXY": "proxy"}
    found = findings(GOOD, Plan([named("ConfigMap", "settings-2h9k", data=data)], IMAGES))
    (fault,) = [each for each in found if each.subject == "settings"]
    assert (fault.level, fault.text) == (Level.WARNING, f"no service knows {name}")
    assert fault.fix == fix


def with_settings(**data: str) -> Plan:
    """An overlay with these settings."""
    return Plan([named("ConfigMap", "settings-2h9k", data=data)], IMAGES)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("MUSTER_HEARTBEAT_S", "abc", "Set it to a number above 0: "),
        ("MUSTER_HEARTBEAT_S", "0", "Set it to a number above 0: "),
        ("MUSTER_BATCH_RECORDS", "1.5", "Set it to a whole number above 0: "),
        (
            "MUSTER_HTTP_PORT",
            "70000",
            "Set it to a whole number of at least 0 and of at most 65535: ",
        ),
        ("MUSTER_KUBE_GPU_MODE", "dra", "Set it to one of none, visible-devices: "),
        ("MUSTER_CPU_LIMITS", "maybe", "Set it to true or false: "),
        ("MUSTER_LOG_LEVEL", "debug", "Set it to one of DEBUG, INFO, WARNING, ERROR, CRITICAL: "),
        ("MUSTER_NODE", "n" * 65, "Set it to a text of at least 1 characters and of at most 64 "),
    ],
)
def test_a_value_with_which_no_service_starts_is_refused(name: str, value: str, fix: str) -> None:
    (fault,) = [
        e for e in findings(GOOD, with_settings(**{name: value})) if e.subject == "settings"
    ]
    assert fault.level is Level.REFUSAL
    assert fault.text.startswith(f"{name} can't be {value[:40]}")
    assert fault.text.endswith(", in ConfigMap settings-2h9k")
    assert fault.fix.startswith(fix)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MUSTER_HEARTBEAT_S", "10"),
        ("MUSTER_BATCH_RECORDS", "300.0"),
        ("MUSTER_CPU_LIMITS", "yes"),
        ("MUSTER_KUBE_IMAGE_PULL_POLICY", ""),
        ("MUSTER_SMTP_PASSWORD", ""),
    ],
)
def test_what_a_service_takes_is_no_finding(name: str, value: str) -> None:
    assert of(findings(GOOD, with_settings(**{name: value})), "settings") == []


def test_an_address_that_may_have_a_password_is_not_shown() -> None:
    found = findings(GOOD, with_settings(MUSTER_KUBE_API_URL="https://ada:hidden@host"))
    (fault,) = [each for each in found if each.subject == "settings"]
    assert fault.level is Level.REFUSAL
    assert "hidden" not in f"{fault.text}{fault.fix}"


def test_a_variable_of_a_workload_is_looked_at_too() -> None:
    values = {"MUSTER_REPORT_S": "1 m", "MUSTER_HTTP_HOST": "$(MUSTER_ADDRESS)", "OTHER": "x"}
    variables = [{"name": name, "value": value} for name, value in values.items()]
    variables.append({"name": "MUSTER_PORT_LAST", "valueFrom": {}})
    pod = {"containers": [{"env": variables}]}
    body = named("DaemonSet", "runtime-agent", spec={"template": {"spec": pod}})
    found = of(findings(GOOD, Plan([body], IMAGES)), "settings")
    text = "MUSTER_REPORT_S can't be 1 m, in DaemonSet runtime-agent"
    assert found == [(Level.REFUSAL, text)]


def test_a_good_cluster_is_all_ok() -> None:
    found = findings(GOOD, PLAN)
    assert {each.level for each in found} == {Level.OK}
    assert [each.subject for each in found] == [
        *("API server", "kubectl", "rights", "namespaces", "quotas", "storage"),
        *("nodes", "GPUs", "clocks", "images"),
    ]


@pytest.mark.parametrize(
    ("changes", "plan", "subject", "level", "text"),
    [
        ({"server": "v1.31.9"}, PLAN, "API server", Level.REFUSAL, "needs 1.32 or later"),
        ({"client": "v1.9.0"}, PLAN, "kubectl", Level.REFUSAL, "needs 1.32 or later"),
        (
            {"denied": [Right("create", "", "namespaces", "")]},
            PLAN,
            "rights",
            Level.REFUSAL,
            "you may not create namespaces",
        ),
        ({"storage_classes": ()}, PLAN, "storage", Level.REFUSAL, "no default storage class"),
        (
            {"namespaces": [named("Namespace", "muster-jobs", status={"phase": "Terminating"})]},
            PLAN,
            "namespaces",
            Level.REFUSAL,
            "muster-jobs is being deleted",
        ),
        (
            {"namespaces": [LOW]},
            Plan([PRIVILEGED], IMAGES),
            "Pod Security",
            Level.REFUSAL,
            "has the level baseline; Muster needs privileged",
        ),
        (
            {"namespaces": [named("Namespace", "muster-system")]},
            Plan([PRIVILEGED], IMAGES),
            "Pod Security",
            Level.WARNING,
            "has the level of the cluster; Muster needs privileged",
        ),
        ({"limits": [QUOTA]}, PLAN, "quotas", Level.WARNING, "ResourceQuota small is in"),
        ({}, Plan((), IMAGES, ("gpu-2",)), "nodes", Level.REFUSAL, "no node is named gpu-2"),
        ({"nodes": ()}, PLAN, "nodes", Level.WARNING, "no node has the label"),
        (
            {"nodes": [a_node(architecture="arm64")]},
            PLAN,
            "nodes",
            Level.REFUSAL,
            "does not run on linux/arm64: gpu-1",
        ),
        (
            {"nodes": [a_node(containerRuntimeVersion="docker://27.3.1")]},
            PLAN,
            "nodes",
            Level.REFUSAL,
            "the container runtime is Docker, and tasks would have no logs: gpu-1",
        ),
        ({"nodes": [a_node("n" * 65)]}, PLAN, "nodes", Level.REFUSAL, "more than 64 characters"),
        ({"nodes": [a_node(is_ready=False)]}, PLAN, "nodes", Level.WARNING, "not ready: gpu-1"),
        (
            {"nodes": [a_node(), tainted("gpu-2", "team=a:NoSchedule"), tainted("gpu-3", ONLY)]},
            PLAN,
            "nodes",
            Level.WARNING,
            "no job starts where the taint team=a:NoSchedule is: gpu-2",
        ),
        (
            {"nodes": [tainted("gpu-1", ONLY)]},
            Plan([TOLERANT], IMAGES),
            "nodes",
            Level.WARNING,
            "the taint muster/only=true:NoSchedule is: gpu-1",
        ),
        (
            {"nodes": [tainted("gpu-2", "team=a:NoSchedule")]},
            Plan([TOLERANT], IMAGES),
            "nodes",
            Level.OK,
            "1 for jobs",
        ),
        (
            {"nodes": [a_node() | {"spec": {"unschedulable": True}}]},
            PLAN,
            "nodes",
            Level.WARNING,
            "cordoned, so no job starts there: gpu-1",
        ),
        (
            {"nodes": [tainted("gpu-1", ONLY)]},
            PLAN,
            "services",
            Level.WARNING,
            "no service finds a place",
        ),
        (
            {"nodes": [a_node(architecture="arm64"), tainted("gpu-2", ONLY)]},
            PLAN,
            "services",
            Level.WARNING,
            "no service finds a place",
        ),
        (
            {"nodes": [at("gpu-1", "10.1.2.3"), at("gpu-2", "100.64.0.2"), at("gpu-3")]},
            Plan([NETWORKS], IMAGES),
            "networks",
            Level.WARNING,
            "REST may read no logs from gpu-2 (100.64.0.2), gpu-3 (203.0.113.7)",
        ),
        ({}, Plan([NO_NETWORK], IMAGES), "networks", Level.REFUSAL, "10.0.0.1/8 has host bits set"),
        ({"nodes": [a_node(gpus=8)]}, PLAN, "GPUs", Level.WARNING, "no RuntimeClass nvidia"),
        (
            {"nodes": [a_node(gpus=8)], "runtime_classes": [NVIDIA]},
            PLAN,
            "GPUs",
            Level.WARNING,
            "8 GPUs on 1 of 1 node; the mode is none",
        ),
        (
            {"nodes": [a_node(gpus=8)], "runtime_classes": [NVIDIA]},
            Plan([DIRECT], IMAGES),
            "GPUs",
            Level.OK,
            "mode visible-devices",
        ),
        (
            {"nodes": [a_node(gpus=8), a_node("cpu-1")], "runtime_classes": [NVIDIA]},
            Plan([DIRECT], IMAGES),
            "GPUs",
            Level.WARNING,
            "no GPUs are seen on cpu-1",
        ),
        ({}, Plan([DIRECT], IMAGES), "GPUs", Level.WARNING, "no GPUs seen"),
        ({}, Plan([OF_CLASS], IMAGES), "GPUs", Level.REFUSAL, "without which no agent starts"),
        (
            {"runtime_classes": [NVIDIA]},
            Plan([OF_CLASS], IMAGES),
            "GPUs",
            Level.WARNING,
            "no GPUs seen",
        ),
        ({"leases": [a_lease(9)]}, PLAN, "clocks", Level.WARNING, "gpu-1 is 9 s ahead"),
        ({"leases": [a_lease(-60)]}, PLAN, "clocks", Level.WARNING, "may be 60 s behind"),
        (
            {"leases": [a_lease(-60)], "nodes": [a_node(is_ready=False)]},
            PLAN,
            "clocks",
            Level.OK,
            "no clock is",
        ),
        (
            {"asked_at": NOW + timedelta(seconds=8), "answered_at": NOW + timedelta(seconds=9)},
            PLAN,
            "clocks",
            Level.WARNING,
            "this machine differs by +8 s",
        ),
        (
            {"asked_at": NOW - timedelta(seconds=9), "answered_at": NOW - timedelta(seconds=8)},
            PLAN,
            "clocks",
            Level.WARNING,
            "this machine differs by -8 s",
        ),
        (
            {"asked_at": NOW - timedelta(seconds=9), "answered_at": NOW + timedelta(seconds=9)},
            PLAN,
            "clocks",
            Level.OK,
            "no clock is",
        ),
        (
            {},
            Plan([MONITOR], IMAGES),
            "kinds",
            Level.REFUSAL,
            "the cluster does not know PodMonitor of monitoring.coreos.com",
        ),
        (
            {},
            Plan((), Images("muster:2", IMAGES.step)),
            "images",
            Level.WARNING,
            "are not known to be on gpu-1",
        ),
    ],
)
def test_each_fault_is_found_and_has_a_fix(  # the columns of the table
    changes: Json, plan: Plan, subject: str, level: Level, text: str
) -> None:
    found = [
        each
        for each in findings(replace(GOOD, **changes), plan)
        if each.subject == subject and each.level is level
    ]
    assert any(text in each.text for each in found), of(found, subject)
    assert all(each.fix for each in found if each.level is not Level.OK)


def test_rights_name_the_resources_of_the_objects() -> None:
    policy = named("NetworkPolicy", "jobs", metadata={"namespace": "muster-jobs"})
    policy["apiVersion"] = "networking.k8s.io/v1"
    asked = {each.text() for each in rights([policy])}
    assert "create networkpolicies.networking.k8s.io in muster-jobs" in asked
    assert "patch nodes" in asked
