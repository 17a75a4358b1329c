"""A change of a cluster: a whole CLUSTER, or another policy and other virtual clusters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler.domain.core.building import flaws
from scheduler.domain.core.config import FAIR_SHARE, ClusterConfig, VirtualCluster
from scheduler.domain.formats.cluster_file import (
    ClusterFile,
    cluster_data,
    cluster_of,
    read_tree,
)
from scheduler.domain.formats.fields import Findings, FormatError, Place

POLICY, VIRTUAL_CLUSTERS = "policy", "virtualClusters"
HARDWARE = ("cellTypes", "physicalCells", "nodes")
"""A file with one of these is a whole cluster."""


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """``whole``: a configuration that replaces any other. Else the replaced parts: ``policy``, its
    fields one by one; ``virtual_clusters``, all of them, None: none.
    """

    whole: ClusterConfig | None = None
    policy: Mapping[str, object] = field(default_factory=dict)
    virtual_clusters: Mapping[str, VirtualCluster] | None = None

    def of(self, config: ClusterConfig) -> ClusterConfig:
        """A configuration with this change."""
        if self.whole is not None:
            return self.whole
        if self.virtual_clusters is not None:
            config = replace(config, virtual_clusters=self.virtual_clusters)
        if self.policy:
            data = cluster_data(ClusterConfig(policy=config.policy))
            before = data[POLICY]
            assert isinstance(before, dict)
            policy = {POLICY: _merged(before, self.policy)}
            config = replace(config, policy=cluster_of(policy, Place(), Findings()).policy)
        return config

    def is_about(self, path: str) -> bool:
        """Whether this path leads to a value of the change."""
        return self.whole is not None or path.startswith((POLICY, VIRTUAL_CLUSTERS))


def _merged(before: dict[str, object], change: Mapping[str, object]) -> dict[str, object]:
    """A policy with this change; fair share is in its order, or not, as the change states."""
    merged, is_fair = before | dict(change), change.get("fairShare")
    if is_fair is True:  # unchanged
        merged["fairShare"] = before["fairShare"] or None
    if is_fair is not None and change.get("orderBy") is None:
        known = before["orderBy"]
        assert isinstance(known, list)
        names = [name for name in known if name != FAIR_SHARE]
        if is_fair is not False:
            names = known if FAIR_SHARE in known else _with_fair_share(names)
        merged["orderBy"] = names or None
    return merged


def _with_fair_share(names: list[str]) -> list[str]:
    at = names.index("age") if "age" in names else len(names)
    return [*names[:at], FAIR_SHARE, *names[at:]]


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A change that was read, and the changed cluster, with the lines of the change."""

    change: ClusterChange
    changed: ClusterFile


def read_change(data: bytes, cluster: ClusterConfig) -> ChangeFile:
    """A file's change of a valid cluster. Raises FormatError with all problems of the file."""
    root = read_tree(data)
    findings = Findings()
    read = cluster_of(root.value, Place(root.line, node=root), findings)
    given = root.value if isinstance(root.value, dict) else {}
    change = _change(given, read)
    if not findings.found and not any(value is not None for value in given.values()):
        findings.add(
            Place(root.line), f"changes nothing: it needs {POLICY}, {VIRTUAL_CLUSTERS} or a cluster"
        )
    changed = ClusterFile(change.of(cluster), root)
    if findings.found:
        raise FormatError([*findings.found, *changed.placed(flaws(changed.config))])
    return ChangeFile(change, changed)


def _change(given: Mapping[str, object], read: ClusterConfig) -> ClusterChange:
    if any(given.get(name) is not None for name in HARDWARE):
        return ClusterChange(whole=read)
    policy = given.get(POLICY)
    fields = policy if isinstance(policy, dict) else {}
    return ClusterChange(
        policy={name: value for name, value in fields.items() if value is not None},
        virtual_clusters=None if given.get(VIRTUAL_CLUSTERS) is None else read.virtual_clusters,
    )
