"""What administrators have set through REST: virtual clusters, policy, or both, in the place of
what the cluster's file says of them, or the nodes make.

Each part is whole: of a policy that is set, what it does not say is as it is where nobody says it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.protocol.document import Limits

from scheduler.domain.core.building import build
from scheduler.domain.core.config import ClusterConfig, Finding, Policy, VirtualCluster
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, ordering_of
from scheduler.domain.formats.cluster_change import HARDWARE, POLICY, VIRTUAL_CLUSTERS
from scheduler.domain.formats.cluster_file import ClusterFile, cluster_data, cluster_of, read_tree
from scheduler.domain.formats.fields import MAX_FINDINGS, Findings, FormatError, Place

PARTS = (VIRTUAL_CLUSTERS, POLICY)
"""What can be set."""

CONFIGURATION = Limits("a configuration", max_bytes=1024 * 1024, max_nodes=100_000)
"""Some ten values a virtual cluster are enough for thousands of them."""

PIN = ".pin"
"""A warning of the hardware that ends so is about who owns it."""

Content = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is set, read; None: that part is not set."""

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
    """What was set, as it was said: by its ``revision`` it is known. ``version``: its number for
    people. ``content`` None: it was removed, and then it has no number.
    """

    revision: int
    version: int | None = None
    content: Content | None = None

    def of(self, config: ClusterConfig) -> ClusterConfig:
        """A configuration with what is set. Raises ConfigError where that can't be read."""
        if self.content is None:
            return config
        findings = Findings()
        parts = _read(self.content, Place(), findings)
        if findings.found:
            raise ConfigError(findings.found)
        return parts.of(config)


@dataclass(frozen=True, slots=True)
class Checked:
    """A setting that can be honoured. ``warnings``: what in it has no effect; ``more`` of them are
    not told.
    """

    content: Content
    warnings: tuple[Finding, ...]
    more: int


def checked(
    data: bytes, base: ClusterConfig, policies: Mapping[str, OrderPolicy] = BUILT_IN
) -> Checked:
    """What a text sets, of a configuration that can be honoured itself. ``policies``: that can be
    named. Raises FormatError with all that is wrong with it.
    """
    root = read_tree(data, CONFIGURATION)
    findings = Findings()
    place = Place(root.line, node=root)
    parts = _read(root.value, place, findings)
    said = root.value if isinstance(root.value, dict) else {}
    if not findings.found and not any(said.get(name) is not None for name in PARTS):
        findings.add(place, f"sets nothing: it needs {VIRTUAL_CLUSTERS} or {POLICY}")
    file = ClusterFile(parts.of(replace(base, unread=frozenset(findings.unread))), root)
    wrong, warnings = looked_at(file.config, policies)
    if findings.found or wrong:
        raise FormatError([*findings.found, *_placed(file, wrong, said)])
    told = [each for each in warnings if each.path.startswith(PARTS) or each.path.endswith(PIN)]
    more = max(0, len(told) - MAX_FINDINGS)
    content = {name: said[name] for name in PARTS if said.get(name) is not None}
    return Checked(content, _placed(file, told[:MAX_FINDINGS], said), more)


def looked_at(
    config: ClusterConfig, policies: Mapping[str, OrderPolicy]
) -> tuple[list[Finding], list[Finding]]:
    """What is wrong with it, and what in it has no effect."""
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
    return wrong, warnings


def in_force(config: ClusterConfig) -> dict[str, object]:
    """What can be set, as it is in a configuration."""
    data = cluster_data(
        ClusterConfig(virtual_clusters=config.virtual_clusters, policy=config.policy)
    )
    return {name: data[name] for name in PARTS}


def _read(value: object, place: Place, findings: Findings) -> Parts:
    said = value if isinstance(value, dict) else {}
    for name in HARDWARE:
        if said.get(name) is not None:
            message = "is hardware, of which the cluster's file or the nodes tell; only"
            findings.add_surplus(place.at(name), f"{message} {' and '.join(PARTS)} can be set")
    soft = {name: each for name, each in said.items() if name not in HARDWARE}
    read = cluster_of(soft if isinstance(value, dict) else value, place, findings)
    return Parts(
        None if said.get(POLICY) is None else read.policy,
        None if said.get(VIRTUAL_CLUSTERS) is None else read.virtual_clusters,
    )


def _placed(file: ClusterFile, findings: Iterable[Finding], said: Content) -> tuple[Finding, ...]:
    """The same with the lines of what was said; what is about the hardware has none."""
    own = tuple(said)
    about = list(findings)
    is_own = [each.path.startswith(own) for each in about]
    placed = file.placed(about)
    return tuple(
        each if mine else replace(each, line=0) for each, mine in zip(placed, is_own, strict=True)
    )
