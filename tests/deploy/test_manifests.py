"""What the manifests of every overlay keep. No cluster is needed: kubectl renders them."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from alerting.settings import AlertingSettings
from cli.deploy.credentials import ADMINISTRATOR, enrolment, secret_of_users, secrets_of_services
from documents.monitoring.dashboards import DASHBOARDS
from documents.monitoring.rules import GROUPS
from kubernetes_asyncio.config.incluster_config import SERVICE_TOKEN_FILENAME
from launcher.settings import LauncherSettings
from manifests import Json, Workload, named, variables, workload, workloads
from muster.contracts.acls import agent_user
from muster.contracts.topics import Service
from muster.settings import ServiceSettings
from real_prometheus import MONITORING
from rendering import K8S, render, render_with
from rest.settings import RestSettings
from runtime_agent.domain.kubernetes.node import (
    HEADROOM_CPUS,
    HEADROOM_MB,
    offer_of,
    requests_of,
)
from runtime_agent.fence import FenceSettings
from runtime_agent.settings import AgentSettings, OnStop
from scheduler.settings import SchedulerSettings

pytestmark = pytest.mark.k8s

SETTINGS: dict[str, type[ServiceSettings]] = {
    "rest": RestSettings,
    "launcher": LauncherSettings,
    "scheduler": SchedulerSettings,
    "alerting": AlertingSettings,
    "runtime-agent": AgentSettings,
    "bus": ServiceSettings,
}
"""Of the workloads of every overlay."""
WITH_FENCE = SETTINGS | {"fence": FenceSettings}
KEY = "k" * 64
NODE, ADDRESS = "gpu-1.example.org", "10.1.2.3"
FIELDS = {"spec.nodeName": NODE, "status.hostIP": ADDRESS}
AUTHORITIES = ("MUSTER_KAFKA_CA_FILE",)
"""Files that an operator brings."""
DATABASE_URL = "postgresql://muster:{password}@postgres:5432/muster"
ROOT = ("runtime-agent",)
PAGE = Path(__file__).parents[2] / "docs/install.md"
OF_KIND = (0.95, 290.0)
"""CPUs and MiB that kind's own pods request on its one node."""
VOLUMES_OF_IMAGES = {
    "apache/kafka": ("/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"),
    "postgres": ("/var/lib/postgresql/data",),
    "localhost/muster": (),
    "localhost/muster-step": (),
}
"""What each image declares as VOLUME. A container runtime lays an empty volume there, also over a
folder of a claim, unless a mount of the pod has this very path.
"""
CLUSTER_WIDE = {
    "Namespace",
    "PriorityClass",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def secrets_of(nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """The contents of all Secrets that an operator applies, by name."""
    made = [*secrets_of_services(KEY, DATABASE_URL), secret_of_users(KEY, nodes)]
    made += [each for node in nodes for each in enrolment(KEY, node, "image")]
    return {
        each["metadata"]["name"]: each["stringData"] for each in made if each["kind"] == "Secret"
    }


def settings_of(
    objects: Sequence[Json], of: Workload, monkeypatch: pytest.MonkeyPatch
) -> ServiceSettings:
    """The settings that the workload's process reads."""
    made = secrets_of([NODE])
    found = variables(objects, of.main, FIELDS)
    mounted = {agent_user(NODE)} if of.name == "runtime-agent" else of.secrets() - {"bus-users"}
    for secret in mounted:
        found |= {name.upper(): value for name, value in made[secret].items()}
    for name in AUTHORITIES:
        found.pop(name, None)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return WITH_FENCE[of.name]()


def every_container(objects: Sequence[Json]) -> list[tuple[Workload, Json]]:
    return [(of, container) for of in workloads(objects) for container in of.containers]


def test_all_services_are_there(objects: Sequence[Json]) -> None:
    found = {(each.kind, each.name) for each in workloads(objects)}
    assert found >= {
        ("Deployment", "rest"),
        ("Deployment", "launcher"),
        ("Deployment", "scheduler"),
        ("Deployment", "alerting"),
        ("DaemonSet", "runtime-agent"),
        ("Job", "bus"),
        ("Job", "migrate"),
    }
    assert workload(objects, "scheduler").body["spec"]["replicas"] == 2


def test_every_object_has_its_namespace(objects: Sequence[Json]) -> None:
    for each in objects:
        has_one = "namespace" in each["metadata"]
        assert has_one == (each["kind"] not in CLUSTER_WIDE), each["metadata"]


def test_every_container_asks_for_what_it_may_use(objects: Sequence[Json]) -> None:
    for of, container in every_container(objects):
        for bound in ("requests", "limits"):
            assert container["resources"][bound].keys() == {"cpu", "memory"}, of.name


def test_the_page_names_a_machine_that_has_room_for_its_job() -> None:
    (cpus,) = re.findall(r"a Linux machine with at least (\d+) CPUs", PAGE.read_text())
    of_muster = [
        requests_of(of.pod)
        for of in workloads(render(K8S / "overlays/minimal"))
        for _ in range(of.body["spec"].get("replicas", 1))
        if of.kind != "Job"
    ]

    def free(number: int) -> int:
        node = {"status": {"allocatable": {"cpu": str(number), "memory": "8Gi"}}}
        offer = offer_of(node, [*of_muster, OF_KIND])
        return offer.cpu - sum(each.cpu for each in offer.others)

    assert (free(int(cpus) - 1), free(int(cpus))) == (0, 1)  # the page's job has one


def test_every_container_has_the_least_rights(objects: Sequence[Json]) -> None:
    for of, container in every_container(objects):
        pod, own = of.pod["securityContext"], container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True, of.name
        assert own["allowPrivilegeEscalation"] is False, of.name
        assert own["capabilities"]["drop"] == ["ALL"], of.name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, of.name
        if of.name not in ROOT:
            assert pod["runAsNonRoot"] is True, of.name
            assert pod["runAsUser"] > 0, of.name
            assert "add" not in own["capabilities"], of.name


def test_no_volume_of_an_image_hides_a_folder_of_a_mount(objects: Sequence[Json]) -> None:
    for of, container in every_container(objects):
        declared = VOLUMES_OF_IMAGES[container["image"].partition(":")[0]]
        for mount in container.get("volumeMounts", []):
            for volume in declared:
                assert Path(mount["mountPath"]) not in Path(volume).parents, (of.name, volume)


def test_kafka_keeps_its_log_in_its_claim() -> None:
    objects = render(K8S / "overlays/minimal")
    of = workload(objects, "kafka")
    (settings,) = [each["configMap"] for each in of.pod["volumes"] if "configMap" in each]
    text = named(objects, "ConfigMap", settings["name"])["data"]["server.properties"]
    (folder,) = re.findall(r"(?m)^log\.dirs=(.+)$", text)
    (claim,) = of.body["spec"]["volumeClaimTemplates"]
    for container in of.containers:
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert Path(mounts[claim["metadata"]["name"]]) == Path(folder).parent
    (script,) = of.pod["initContainers"][0]["args"]
    assert f"[ -f {folder}/meta.properties ]" in script


def test_kafka_logs_to_no_file() -> None:
    """They would fill the folder for temporary files, and kubelet would evict the broker."""
    objects = render(K8S / "overlays/minimal")
    of = workload(objects, "kafka")
    (broker,) = of.pod["containers"]
    env = {each["name"]: each["value"] for each in broker["env"]}
    (settings,) = [each["configMap"] for each in of.pod["volumes"] if "configMap" in each]
    option, _, path = env["KAFKA_LOG4J_OPTS"].partition("=")
    assert option == "-Dlog4j2.configurationFile"
    folders = {each["mountPath"]: each["name"] for each in broker["volumeMounts"]}
    assert folders[str(Path(path).parent)] == "settings"
    text = named(objects, "ConfigMap", settings["name"])["data"][Path(path).name]
    assert re.findall(r"(?m)^appender\.\w+\.type=(.+)$", text) == ["Console"]
    assert "-loggc" not in env["EXTRA_ARGS"]


def test_only_the_agent_sees_the_host(objects: Sequence[Json]) -> None:
    for of in workloads(objects):
        is_agent = of.name == "runtime-agent"
        assert of.pod.get("hostNetwork", False) is is_agent
        assert of.pod.get("hostPID", False) is is_agent
        assert any("hostPath" in each for each in of.pod.get("volumes", [])) is is_agent
        assert of.pod.get("automountServiceAccountToken", True) is is_agent


def test_the_agent_has_two_capabilities_and_four_folders(objects: Sequence[Json]) -> None:
    agent = workload(objects, "runtime-agent")
    assert agent.main["securityContext"]["capabilities"]["add"] == ["DAC_READ_SEARCH", "KILL"]
    paths = {
        each["name"]: each["hostPath"]["path"]
        for each in agent.pod["volumes"]
        if "hostPath" in each
    }
    mounts = {
        (paths[each["name"]], each.get("readOnly", False))
        for each in agent.main["volumeMounts"]
        if each["name"] in paths
    }
    assert mounts == {
        ("/var/lib/muster", False),
        ("/sys/fs/cgroup", True),
        ("/var/log/pods", True),
        ("/var/lib/kubelet/pods", True),
    }


def test_a_roll_out_replaces_agents_one_tenth_at_a_time(objects: Sequence[Json]) -> None:
    update = workload(objects, "runtime-agent").body["spec"]["updateStrategy"]
    assert update == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}


def test_a_pod_that_a_roll_out_adds_fits_into_the_headroom(objects: Sequence[Json]) -> None:
    added = [
        requests_of(each.pod)
        for each in workloads(objects)
        if each.body["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge")
    ]
    assert max(cpu for cpu, _ in added) <= HEADROOM_CPUS
    assert max(memory_mb for _, memory_mb in added) <= HEADROOM_MB


def test_what_goes_on_is_probed(objects: Sequence[Json]) -> None:
    for of in workloads(objects):
        probes = {name for name in of.main if name.endswith("Probe")}
        expected = (
            set() if of.kind == "Job" else {"startupProbe", "livenessProbe", "readinessProbe"}
        )
        assert probes == expected, of.name


def test_every_service_outlives_a_drained_node(objects: Sequence[Json]) -> None:
    for name in ("rest", "launcher", "scheduler", "alerting"):
        budget = named(objects, "PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        labels = workload(objects, name).template["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_pods_of_muster_name_nodes_on_which_its_image_runs(objects: Sequence[Json]) -> None:
    of_cluster = [each for each in workloads(objects) if each.kind in ("Deployment", "Job")]
    assert {each.name for each in of_cluster} >= {"rest", "bus", "migrate"}
    for of in of_cluster:
        wanted = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        assert of.pod["nodeSelector"] == wanted, of.name


def test_services_find_their_pods(objects: Sequence[Json]) -> None:
    for service in [each for each in objects if each["kind"] == "Service"]:
        of = workload(objects, service["metadata"]["name"])
        labels = of.template["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        ports = {each["name"] for each in of.main["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    assert named(objects, "Service", "scheduler")["spec"]["clusterIP"] == "None"


def test_no_secret_is_in_the_manifests(objects: Sequence[Json], overlay: Path) -> None:
    assert not [each for each in objects if each["kind"] == "Secret"]
    secret = {
        f"MUSTER_{name.upper()}"
        for kind in WITH_FENCE.values()
        for name, field in kind.model_fields.items()
        if "Secret" in str(field.annotation) or "Password" in str(field.annotation)
    }
    assert "MUSTER_KAFKA_PASSWORD" in secret
    for of, container in every_container(objects):
        plain = {each["name"] for each in container.get("env", []) if "value" in each}
        assert not plain & secret, of.name
    for config in [each for each in objects if each["kind"] == "ConfigMap"]:
        assert not config["data"].keys() & secret
        for text in config["data"].values():
            assert not re.search(r"(?i)password=(?!\"?\$\{)", text)


def no_variable_is_unknown(objects: Sequence[Json], of: Workload) -> None:
    known = {each.upper() for kind in WITH_FENCE.values() for each in kind.model_fields}
    own = {each.upper() for each in WITH_FENCE[of.name].model_fields}
    for variable in variables(objects, of.main, FIELDS):
        assert variable.removeprefix("MUSTER_") in known, variable
    for variable in of.main.get("env", []):
        assert variable["name"].removeprefix("MUSTER_") in own, variable["name"]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_accepted(
    objects: Sequence[Json], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = workload(objects, name)
    no_variable_is_unknown(objects, of)
    read = settings_of(objects, of, monkeypatch)
    user = {"runtime-agent": agent_user(NODE), "bus": ADMINISTRATOR}.get(name, name)
    assert (read.kafka_user, read.http_host) == (
        user,
        ADDRESS if name == "runtime-agent" else "0.0.0.0",
    )
    assert read.kafka_has_login
    assert read.metrics_token.get_secret_value() or name == "bus"


def test_the_services_listen_where_they_are_expected(
    objects: Sequence[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rest", "launcher", "scheduler", "alerting", "runtime-agent"):
        of = workload(objects, name)
        read = settings_of(objects, of, monkeypatch)
        assert of.main["ports"] == [
            {"name": "http", "containerPort": read.http_port}  # type: ignore[attr-defined]
        ]


def test_a_roll_out_of_agents_ends_no_pod(
    objects: Sequence[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = settings_of(objects, workload(objects, "runtime-agent"), monkeypatch)
    assert isinstance(read, AgentSettings)
    assert read.agent_on_stop is OnStop.KEEP
    assert (read.node, read.address) == (NODE, ADDRESS)


def test_rest_finds_the_scheduler_and_has_its_key(
    objects: Sequence[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = settings_of(objects, workload(objects, "rest"), monkeypatch)
    assert isinstance(read, RestSettings)
    port = named(objects, "Service", "scheduler")["spec"]["ports"][0]["port"]
    assert read.scheduler_url == f"http://scheduler:{port}"
    assert read.cluster_key.get_secret_value()


def test_every_mounted_secret_is_made(objects: Sequence[Json]) -> None:
    made = secrets_of([])
    for of in workloads(objects):
        assert of.secrets() <= made.keys(), of.name


def test_each_kafka_user_has_a_password(objects: Sequence[Json]) -> None:
    users = secrets_of([NODE])["bus-users"]
    for service in Service:
        user = agent_user(NODE) if service is Service.RUNTIME_AGENT else service.value
        assert user in users
        assert secrets_of([NODE])[user]["muster_kafka_password"] == users[user]
    assert "operator" in users
    assert secrets_of([])["fence"]["muster_kafka_password"] == users["fence"]
    assert ADMINISTRATOR not in users


def test_the_topics_are_the_ones_that_services_verify(
    objects: Sequence[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = settings_of(objects, workload(objects, "bus"), monkeypatch)
    rest = settings_of(objects, workload(objects, "rest"), monkeypatch)
    assert (bus.topic_partitions, bus.topic_retention_days) == (
        rest.topic_partitions,
        rest.topic_retention_days,
    )


def test_the_rights_of_agents_are_these(objects: Sequence[Json]) -> None:
    def rights(kind: str, namespace: str | None = None) -> set[tuple[str, str]]:
        rules = named(objects, kind, "muster-agent", namespace)["rules"]
        assert all(each["apiGroups"] == [""] for each in rules)
        return {
            (kind, verb) for each in rules for kind in each["resources"] for verb in each["verbs"]
        }

    assert rights("ClusterRole") == {
        ("pods", "list"),
        ("pods", "watch"),
        ("nodes", "list"),
        ("nodes", "watch"),
    }
    for namespace in ("muster-jobs", "muster-jobs-host"):
        assert rights("Role", namespace) == {
            ("pods", "create"),
            ("pods", "get"),
            ("pods", "delete"),
            ("secrets", "create"),
            ("secrets", "delete"),
            ("persistentvolumeclaims", "get"),
            ("events", "list"),
        }
    grants = [each for each in objects if each["kind"] in ("Role", "ClusterRole")]
    names = {each["metadata"]["name"] for each in grants}
    assert names - {"muster-fence"} == {"muster-agent", "rest"}


def test_rest_reads_claims_of_jobs_and_nothing_else(
    objects: Sequence[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = workload(objects, "rest")
    read = settings_of(objects, rest, monkeypatch)
    assert isinstance(read, RestSettings)
    assert read.kube_api_url == "https://kubernetes.default.svc"
    (mounted,) = [each for each in rest.pod["volumes"] if each["name"] == "secrets"]
    sources = mounted["projected"]["sources"]
    (token,) = [each["serviceAccountToken"] for each in sources if "serviceAccountToken" in each]
    (ca,) = [each["configMap"]["items"][0] for each in sources if "configMap" in each]
    (mount,) = [each for each in rest.main["volumeMounts"] if each["name"] == "secrets"]
    folder = Path("/var") / mount["mountPath"].lstrip("/")  # /var/run is a link to /run
    account = read.kube_service_account
    assert [folder / each["path"] for each in (token, ca)] == [
        account / "token",
        account / "ca.crt",
    ]
    rules = [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]}]
    for namespace in (read.kube_namespace, read.kube_host_namespace):
        assert named(objects, "Role", "rest", namespace)["rules"] == rules
        assert named(objects, "RoleBinding", "rest", namespace)["subjects"] == [
            {
                "kind": "ServiceAccount",
                "name": rest.pod["serviceAccountName"],
                "namespace": "muster-system",
            }
        ]


def test_production_has_one_fence_that_lists_and_deletes_pods_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = render(K8S / "overlays/production")
    fence = workload(objects, "fence")
    assert (fence.body["spec"]["replicas"], fence.body["spec"]["strategy"]) == (
        1,
        {"type": "Recreate"},
    )
    assert fence.secrets() == {"fence"}
    (mounted,) = [each for each in fence.pod["volumes"] if each["name"] == "secrets"]
    sources = mounted["projected"]["sources"]
    (token,) = [each for each in sources if "serviceAccountToken" in each]
    (mount,) = [each for each in fence.main["volumeMounts"] if each["name"] == "secrets"]
    at = Path("/var") / mount["mountPath"].lstrip("/") / token["serviceAccountToken"]["path"]
    assert str(at) == SERVICE_TOKEN_FILENAME  # /var/run is a link to /run
    no_variable_is_unknown(objects, fence)
    read = settings_of(objects, fence, monkeypatch)
    assert isinstance(read, FenceSettings)
    assert (read.kafka_user, read.http_host) == ("fence", "0.0.0.0")
    assert fence.main["ports"] == [{"name": "http", "containerPort": read.http_port}]
    roles = {
        (each["kind"], each["metadata"]["namespace"]): each["rules"]
        for each in objects
        if each["metadata"]["name"] == "muster-fence" and "rules" in each
    }
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]}]
    agents = settings_of(objects, workload(objects, "runtime-agent"), monkeypatch)
    assert isinstance(agents, AgentSettings)
    namespaces = [agents.kube_namespace, agents.kube_host_namespace]
    assert [read.kube_namespace, read.kube_host_namespace] == namespaces
    assert roles == {("Role", namespace): rules for namespace in namespaces}


def test_the_fence_runs_the_image_of_the_services(tmp_path: Path) -> None:
    """Where an overlay names the component, the overlay below has renamed that image before."""
    image = {"name": "localhost/muster", "newName": "registry.example.org/muster"}
    objects = render_with(["fence"], tmp_path, images=[image])
    images = [workload(objects, each).main["image"] for each in ("fence", "launcher")]
    assert images == ["registry.example.org/muster:0.1.0"] * 2


def test_jobs_run_under_pod_security(objects: Sequence[Json]) -> None:
    enforced = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in objects
        if each["kind"] == "Namespace"
    }
    assert enforced == {
        "muster-system": "privileged",
        "muster-jobs": "baseline",
        "muster-jobs-host": "privileged",
    }


def test_an_image_has_one_place(objects: Sequence[Json]) -> None:
    for of, container in every_container(objects):
        assert re.fullmatch(r"(localhost/)?[a-z/-]+:[0-9.]+", container["image"]), of.name


def test_kafka_is_encrypted_in_production() -> None:
    objects = render(K8S / "overlays/production")
    found = variables(objects, workload(objects, "rest").main, FIELDS)
    assert found["MUSTER_KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"
    for name in WITH_FENCE:
        mounts = workload(objects, name).main["volumeMounts"]
        (folder,) = [each["mountPath"] for each in mounts if each["name"] == "authorities"]
        assert found["MUSTER_KAFKA_CA_FILE"].startswith(folder)


def test_nodes_with_gpus_give_each_pod_its_own(
    with_components: Callable[..., Sequence[Json]],
) -> None:
    agent = named(with_components("nvidia"), "DaemonSet", "runtime-agent", "muster-system")
    spec = agent["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert spec["runtimeClassName"] == "nvidia"
    assert given["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert given["MUSTER_KUBE_GPU_MODE"] == "visible-devices"


def test_prometheus_has_the_token(with_components: Callable[..., Sequence[Json]]) -> None:
    objects = with_components("monitoring", "fence")
    (endpoint,) = named(objects, "PodMonitor", "muster")["spec"]["podMetricsEndpoints"]
    wanted = endpoint["authorization"]["credentials"]
    assert secrets_of([])[wanted["name"]][wanted["key"]] == secrets_of([])["rest"][wanted["key"]]
    components = {
        of.template["metadata"]["labels"]["app.kubernetes.io/component"]
        for of in workloads(objects)
        if of.name in WITH_FENCE and of.kind != "Job"
    }
    (selected,) = named(objects, "PodMonitor", "muster")["spec"]["selector"]["matchExpressions"]
    assert set(selected["values"]) == components


def test_prometheus_labels_services_and_nodes_as_dashboards_and_rules_know_them(
    with_components: Callable[..., Sequence[Json]],
) -> None:
    objects = with_components("monitoring", "fence")
    (endpoint,) = named(objects, "PodMonitor", "muster")["spec"]["podMetricsEndpoints"]
    for of in workloads(objects):
        if of.name in WITH_FENCE and of.kind != "Job":
            name = of.template["metadata"]["labels"]["app.kubernetes.io/name"]
            discovered = {
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": name,
                "__meta_kubernetes_pod_node_name": "node-7",
            }
            node = {"node": "node-7"} if name == "runtime-agent" else {}
            assert relabelled(endpoint["relabelings"], discovered) == {"service": of.name} | node


def relabelled(relabelings: Sequence[Json], discovered: dict[str, str]) -> dict[str, str]:
    """The labels that Prometheus's action `replace` sets."""
    made = {}
    for each in relabelings:
        assert each.keys() <= {"sourceLabels", "targetLabel", "regex"}
        value = ";".join(discovered[label] for label in each["sourceLabels"])
        if found := re.fullmatch(each.get("regex", "(.*)"), value):
            made[each["targetLabel"]] = found.group(1)
    return made


def test_rules_and_dashboards_are_objects_of_the_cluster(
    with_components: Callable[..., Sequence[Json]],
) -> None:
    objects = with_components("monitoring")
    for group in GROUPS:
        made = named(objects, "PrometheusRule", f"muster-{group.name}", "muster-system")
        plain = yaml.safe_load((MONITORING / "rules" / f"{group.name}.yaml").read_text())
        assert made["spec"] == plain
    for board in DASHBOARDS:
        found = named(objects, "ConfigMap", f"dashboard-{board.uid}", "muster-system")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = found["data"].values()
        assert text == (MONITORING / "dashboards" / f"{board.uid}.json").read_text()


def test_a_group_of_rules_is_switched_off_as_the_guide_shows(tmp_path: Path) -> None:
    page = (K8S.parents[1] / "docs/monitoring.md").read_text().partition("## Kubernetes")[2]
    patch = yaml.safe_load(page.split("```")[1].removeprefix("yaml\n"))
    objects = render_with(["monitoring"], tmp_path, **patch)
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "PrometheusRule"}
    assert names == {f"muster-{group.name}" for group in GROUPS} - {"muster-gpu"}


def test_links_to_the_runbook_begin_where_people_read_it_as_the_guide_shows(
    tmp_path: Path,
) -> None:
    page = (K8S.parents[1] / "docs/monitoring.md").read_text().partition("### Links to the run")[2]
    example = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    objects = render_with(["monitoring"], tmp_path, **example)
    command = page.partition("```sh\n")[2].partition("```")[0]
    shutil.copytree(MONITORING / "rules", tmp_path / "rules")
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    address = re.compile(r"https://git\.example\.org/muster/docs/alert-rules\.md#[a-z]+")
    for group in GROUPS:
        plain = yaml.safe_load((tmp_path / "rules" / f"{group.name}.yaml").read_text())
        assert named(objects, "PrometheusRule", f"muster-{group.name}")["spec"] == plain
        for rule in plain["groups"][0]["rules"]:
            assert address.fullmatch(rule["annotations"]["runbook_url"])


def test_the_patch_for_kube_prometheus_stack_labels_monitor_and_rules(tmp_path: Path) -> None:
    page = (K8S / "README.md").read_text().partition("### kube-prometheus-stack")[2]
    patch = yaml.safe_load(page.split("```")[1].removeprefix("yaml\n"))
    objects = render_with(["monitoring"], tmp_path, **patch)
    found = [each for each in objects if each["kind"] in ("PodMonitor", "PrometheusRule")]
    assert len(found) == 1 + len(GROUPS)
    assert {each["metadata"]["labels"]["release"] for each in found} == {"kube-prometheus-stack"}


def test_a_log_in_to_a_registry_is_that_of_all_pods_of_muster(tmp_path: Path) -> None:
    """As docs/install.md shows. Pods without an account of theirs have the account `default`."""
    page = (K8S.parents[1] / "docs/install.md").read_text().partition("### A registry with")[2]
    patch = yaml.safe_load(page.split("```yaml\n")[1].partition("```")[0])
    objects = render_with(["fence"], tmp_path, **patch)
    with_log_in = {
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "ServiceAccount"
        and each.get("imagePullSecrets") == [{"name": "registry"}]
    }
    accounts = {each.pod.get("serviceAccountName", "default") for each in workloads(objects)}
    assert with_log_in == accounts | {"default"}


def test_services_may_reach_all_where_a_cluster_denies_that_by_default(
    with_components: Callable[..., Sequence[Json]],
) -> None:
    objects = with_components("network-policies")
    policy = named(objects, "NetworkPolicy", "outwards", "muster-system")["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}


@pytest.mark.parametrize("namespace", ["muster-jobs", "muster-jobs-host"])
def test_tasks_reach_agents_and_dns_also_where_blocks_have_neither_nodes_nor_pods(
    with_components: Callable[..., Sequence[Json]], namespace: str
) -> None:
    """As with Cilium: https://github.com/cilium/cilium/issues/20550 and 9209."""
    objects = with_components("network-policies")
    egress = named(objects, "NetworkPolicy", "jobs", namespace)["spec"]["egress"]
    (agent,) = workload(objects, "runtime-agent").main["ports"]
    of_agents = [rule["ports"] for rule in egress if "to" not in rule]
    assert of_agents == [[{"protocol": "TCP", "port": agent["containerPort"]}]]
    peers = [peer for rule in egress if "ports" not in rule for peer in rule["to"]]
    assert {"namespaceSelector": {}} in peers


def test_policies_open_the_ports_that_exist(
    with_components: Callable[..., Sequence[Json]],
) -> None:
    objects = with_components("network-policies")
    opened = 0
    for policy in [each for each in objects if each["kind"] == "NetworkPolicy"]:
        name = policy["metadata"]["name"]
        labels = policy["spec"]["podSelector"].get("matchLabels", {})
        for rule in policy["spec"].get("ingress", []):
            if "app.kubernetes.io/name" in labels:
                (port,) = rule["ports"]
                of = workload(objects, labels["app.kubernetes.io/name"])
                assert of.main["ports"][0]["containerPort"] == port["port"], name
                opened += 1
    assert opened == 5
