"""The setting that administrators make through REST: virtual clusters, policy, or both. It replaces
these parts of the cluster's file, or of the cluster that the nodes make.

Each part is complete: a field that a set policy leaves out has its default.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.protocol.document import Limits

from scheduler.domain.core.building import build
from scheduler.domain.core.config import ClusterConfig, Finding, Policy, VirtualCluster
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, doubtful, ordering_of
from scheduler.domain.formats.cluster_change import HARDWARE, POLICY, VIRTUAL_CLUSTERS
from scheduler.domain.formats.cluster_file import ClusterFile, cluster_data, cluster_of, read_tree
from scheduler.domain.formats.fields import MAX_FINDINGS, Findings, FormatError, Place

PARTS = (VIRTUAL_CLUSTERS, POLICY)
"""The parts that can be set."""

CONFIGURATION = Limits("a configuration", max_bytes=1024 * 1024, max_nodes=100_000)
"""The most values. Ten for each virtual cluster are enough for thousands of them."""

PIN = ".pin"
"""The end of the path of a hardware warning about an owner."""

Content = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Parts:
    """A setting, read; None: that part is not set."""

    policy: Policy | None = None
    virtual_clusters: Mapping[str, VirtualCluster] | None = None

    def of(self, config: ClusterConfig) -> ClusterConfig:
        """A configuration with these parts."""
        if self.policy is not None:
            config = replace(config, policy=self.policy)
        if self.virtual_clusters is not None:
            config = replace(config, virtual_clusters=self.virtual_clusters)
        return config


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as published; its ``revision`` identifies it. ``version``: its number for people.
    ``content`` None: the setting was removed, and then it has no number.
    """

    revision: int
    version: int | None = None
    content: Content | None = None

    def of(self, config: ClusterConfig) -> ClusterConfig:
        """A configuration with the setting. Raises ConfigError if it can't be read."""
        if self.content is None:
            return config
        findings = Findings()
        parts = _read(self.content, Place(), findings)
        if findings.found:
            raise ConfigError(findings.found)
        return parts.of(config)


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid setting. ``warnings``: parts without effect; ``more``: how many of them are left
    out.
    """

    content: Content
    warnings: tuple[Finding, ...]
    more: int


def checked(
    data: bytes, base: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
) -> Checked:
    """A text's setting, on a valid configuration. ``policies``: those that it can name. Raises
    FormatError with all problems.
    """
    root = read_tree(data, CONFIGURATION)
    findings = Findings()
    place = Place(root.line, node=root)
    parts = _read(root.value, place, findings)
    given = root.value if isinstance(root.value, dict) else {}
    if not findings.found and not any(given.get(name) is not None for name in PARTS):
        findings.add(place, f"sets nothing: it needs {VIRTUAL_CLUSTERS} or {POLICY}")
    file = ClusterFile(parts.of(replace(base, unread=frozenset(findings.unread))), root)
    wrong, warnings = looked_at(file.config, policies)
    if findings.found or wrong:
        raise FormatError([*findings.found, *_placed(file, wrong, given)])
    listed = [each for each in warnings if each.path.startswith(PARTS) or each.path.endswith(PIN)]
    more = max(0, len(listed) - MAX_FINDINGS)
    content = {name: given[name] for name in PARTS if given.get(name) is not None}
    return Checked(content, _placed(file, listed[:MAX_FINDINGS], given), more)


def looked_at(
    config: ClusterConfig, policies: Mapping[str, OrderPolicy]
) -> tuple[list[Finding], list[Finding]]:
    """A configuration's problems, and its parts without effect or with a doubtful one."""
    wrong: list[Finding] = []
    warnings: list[Finding] = []
    try:
        warnings = build(config).warnings
    except ConfigError as error:
        wrong += error.findings
    try:
        ordering_of(config.policy, policies)
    except ConfigError as error:
        wrong += error.findings
    return wrong, warnings + doubtful(config.policy)


def in_force(config: ClusterConfig) -> dict[str, object]:
    """A configuration's parts that can be set."""
    data = cluster_data(
        ClusterConfig(virtual_clusters=config.virtual_clusters, policy=config.policy)
    )
    return {name: data[name] for name in PARTS}


def _read(value: object, place: Place, findings: Findings) -> Parts:
    given = value if isinstance(value, dict) else {}
    for name in HARDWARE:
        if given.get(name) is not None:
            message = "is hardware, which comes from the cluster's file or the nodes; only"
            findings.add_surplus(place.at(name), f"{message} {' and '.join(PARTS)} can be set")
    soft = {name: each for name, each in given.items() if name not in HARDWARE}
    read = cluster_of(soft if isinstance(value, dict) else value, place, findings)
    return Parts(
        None if given.get(POLICY) is None else read.policy,
        None if given.get(VIRTUAL_CLUSTERS) is None else read.virtual_clusters,
    )


def _placed(file: ClusterFile, findings: Iterable[Finding], given: Content) -> tuple[Finding, ...]:
    """The same with the lines of the given values; findings about hardware have none."""
    own = tuple(given)
    about = list(findings)
    is_own = [each.path.startswith(own) for each in about]
    placed = file.placed(about)
    return tuple(
        each if mine else replace(each, line=0) for each, mine in zip(placed, is_own, strict=True)
    )
