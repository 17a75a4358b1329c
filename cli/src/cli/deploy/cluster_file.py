"""Makes the Scheduler's cluster file from the labels of Kubernetes nodes. Pure.

A node's GPUs are its leaves. Each level of labels puts nodes into a cell: an NVLink domain, a rack.
A level that no node has a label of is left out.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import yaml

from cli.deploy.objects import Json, find, gpus_of, name_of

PRODUCT = "nvidia.com/gpu.product"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LEVELS = ("nvidia.com/gpu.clique", "topology.kubernetes.io/rack")
"""From the node outwards."""
SETTING = "MUSTER_CLUSTER_FILE"
HEAD = "# Made by `muster deploy cluster-file` from the labels "


def cluster_file(nodes: Sequence[Json], levels: Sequence[str] = LEVELS) -> Json:
    """The content of the file. Nodes without GPUs are in no cell."""
    with_gpus = sorted((each for each in nodes if gpus_of(each)), key=by_name)
    used = [each for each in levels if any(each in _labels(node) for node in with_gpus)]
    types: Json = {}
    found: list[Json] = []
    kinds = list(dict.fromkeys(kind_of(each) for each in with_gpus))
    counts = {leaf: sum(1 for other, _ in kinds if other == leaf) for leaf, _ in kinds}
    for leaf, gpus in kinds:
        stem = leaf if counts[leaf] == 1 else f"{leaf}-{gpus}"
        types[f"{stem}-node"] = {"child": leaf, "count": gpus, "node": True}
        of_kind = [each for each in with_gpus if kind_of(each) == (leaf, gpus)]
        found += _cells(of_kind, stem, used, types)
    content: Json = {"cellTypes": types, "physicalCells": found}
    if without := sorted(name_of(each) for each in nodes if not gpus_of(each)):
        content["nodes"] = {name: {} for name in without}
    return content


def written(content: Json, levels: Sequence[str]) -> str:
    """The file. Its first line names the labels, for `differences`."""
    body = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
    return f"{HEAD}{', '.join(levels)}\n{body}"


def differences(text: str, nodes: Sequence[Json]) -> list[str] | None:
    """Each node whose labels differ from a file, and how. None: a person wrote the file, or has
    given it another form. Raises ValueError where it is no YAML.
    """
    levels = _levels(text)
    if levels is None:
        return None
    try:
        then = _places(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (AttributeError, KeyError, TypeError):  # the Scheduler judges it
        return None
    now = _places(cluster_file(nodes, levels))
    found = []
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            found.append(f"{name} is {now.get(name, 'no node')}, not {then.get(name, 'no node')}")
    return found


def commands(text: str) -> str:
    """The command that makes a file from the same labels."""
    levels = _levels(text) or LEVELS
    options = [] if tuple(levels) == LEVELS else [f"--level {each}" for each in levels]
    return " ".join(["muster deploy cluster-file", *options])


def file_in(objects: Sequence[Json]) -> str | None:
    """The file that the Scheduler reads, from a ConfigMap among these objects."""
    scheduler = find(objects, "Deployment", "scheduler")
    pod = {} if scheduler is None else scheduler["spec"]["template"]["spec"]
    for container in pod.get("containers", []):
        settings = {each["name"]: each.get("value", "") for each in container.get("env", [])}
        path = PurePosixPath(settings.get(SETTING, ""))
        for mount in container.get("volumeMounts", []):
            if mount["mountPath"] == str(path.parent):
                volumes = {each["name"]: each for each in pod.get("volumes", [])}
                name = volumes[mount["name"]].get("configMap", {}).get("name", "")
                held: dict[str, str] = (find(objects, "ConfigMap", name) or {}).get("data", {})
                return held.get(path.name)
    return None


def virtual_clusters_in(text: str) -> list[str]:
    """The virtual clusters of a cluster file; none where it leaves them to the running system, or
    can't be read.
    """
    try:
        found = yaml.safe_load(text)["virtualClusters"]
    except (yaml.YAMLError, KeyError, TypeError):  # the Scheduler judges it
        return []
    return sorted(map(str, found)) if isinstance(found, dict) else []


def _levels(text: str) -> list[str] | None:
    first = text.partition("\n")[0]
    return first.removeprefix(HEAD).split(", ") if first.startswith(HEAD) else None


def _places(content: Json) -> dict[str, str]:
    """Each node's GPUs and cells, for people."""
    found = {str(name): "without GPUs" for name in content.get("nodes") or {}}
    types = content["cellTypes"]

    def walk(cells: Sequence[Json], within: tuple[str, ...]) -> None:
        for cell in cells:
            kind = types[cell["type"]]
            if kind.get("node"):
                where = " in " + "/".join(within) if within else ""
                found[str(cell["name"])] = f"{kind['count']} {kind['child']}{where}"
            else:
                walk(cell.get("children") or (), (*within, str(cell.get("name"))))

    walk(content.get("physicalCells") or (), ())
    return found


def _cells(nodes: Sequence[Json], stem: str, levels: Sequence[str], types: Json) -> Iterator[Json]:
    """The trees of nodes of one kind. A node without a level's label is in no cell of it."""
    if not levels:
        for node in nodes:
            yield {"type": f"{stem}-node", "name": name_of(node)}
        return
    *inner, outer = levels
    groups: dict[str | None, list[Json]] = {}
    for node in nodes:
        groups.setdefault(_labels(node).get(outer), []).append(node)
    for value, group in groups.items():
        below = list(_cells(group, stem, inner, types))
        if value is None:
            yield from below
            continue
        for child in dict.fromkeys(each["type"] for each in below):
            of_child = [each for each in below if each["type"] == child]
            name = f"{child.removesuffix('-node')}-{_short(outer)}"
            known = types.setdefault(name, {"child": child, "count": 0})
            known["count"] = max(known["count"], len(of_child))
            yield {"type": name, "name": value, "children": of_child}


def kind_of(node: Json) -> tuple[str, int]:
    """The type of its GPUs, and their number."""
    labels = _labels(node)
    name = labels.get(PRODUCT) or labels.get(INSTANCE_TYPE) or "gpu"
    return name.lower().removeprefix("nvidia-"), gpus_of(node)


def _short(label: str) -> str:
    return re.split(r"[/.]", label)[-1]


def by_name(node: Json) -> list[int | str]:
    """By name, numbers by their value: node-2 before node-10."""
    parts = re.split(r"(\d+)", name_of(node))
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def _labels(node: Json) -> dict[str, str]:
    found: dict[str, str] = node["metadata"].get("labels", {})
    return found
