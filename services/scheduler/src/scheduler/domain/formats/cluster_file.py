"""CLUSTER: the configuration of a cluster, as YAML, as JSON and as values.

This module checks only the form. `core.building` checks whether the cells fit together and the
quota is possible. If the form is wrong, both run, so that all problems are reported at once;
`ClusterFile.placed` gives the findings their lines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster.protocol.document import Limits, Node, read_document
from muster.protocol.problems import ProtocolError
from muster.protocol.shape import MAX_TIME_LIMIT_S

from scheduler.domain.core.building import flaws
from scheduler.domain.core.config import (
    ALL_TYPES,
    FAIR_SHARE,
    USUAL_ORDER,
    CellType,
    ClusterConfig,
    Finding,
    NodeLimits,
    PhysicalCell,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.formats.fields import (
    MAX_NUMBER,
    MAX_PORT,
    Findings,
    FormatError,
    Place,
    Table,
    count_problem,
)
from scheduler.domain.formats.writing import whole

CLUSTER_FILE = Limits("a cluster's file", max_bytes=16 * 1024 * 1024, max_nodes=2_000_000)
"""The most values. Some hundred bytes and ten values a node are enough for 100,000 nodes."""

MAX_WEIGHT = 1_000_000
"""Of a user in fair share."""

MAX_POLICY_S = MAX_TIME_LIMIT_S
"""The longest duration in a policy: the same as in a job."""

STRICT = "strict"
"""The order without backfill."""

MAX_CELL_DEPTH = 20
"""Physical cells within one another."""

_FILE = frozenset(("cellTypes", "physicalCells", "nodes", "virtualClusters", "policy"))
_CELL_TYPE = frozenset(("child", "count", "node"))
_CELL = frozenset(("type", "name", "nodes", "children", "index", "pin"))
_NODE = frozenset(("cpu", "memoryMB", "ports", "resources"))
_VIRTUAL_CLUSTER = frozenset(("cells", "pins", "lendingLimit", "borrowingLimit"))
_QUOTA = frozenset(("type", "count"))
_FAIR_SHARE = frozenset(("halfLifeSeconds", "weights"))
_POLICY = frozenset(
    (
        "lazyPreemption",
        "graceSeconds",
        "enforceGrace",
        "requeue",
        "backfill",
        "order",
        "assumedSeconds",
        "maxPassSeconds",
        "minRunSeconds",
        "preemptionsPerHour",
        "orderBy",
        "fairShare",
    )
)


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A file that was read, and its tree, which knows the lines."""

    config: ClusterConfig
    root: Node

    def placed(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The same findings, with the lines of their paths where they have none."""
        return tuple(
            each if each.line else replace(each, line=_line(self.root, each.path))
            for each in findings
        )


def read_cluster(data: bytes) -> ClusterFile:
    """A file's configuration. Raises FormatError with all problems of the file."""
    root = read_tree(data)
    findings = Findings()
    file = ClusterFile(cluster_of(root.value, Place(root.line, node=root), findings), root)
    if findings.found:
        raise FormatError([*findings.found, *file.placed(flaws(file.config))])
    return file


def read_tree(data: bytes, limits: Limits = CLUSTER_FILE) -> Node:
    """A file's values. Raises FormatError if it is not YAML."""
    try:
        return read_document(data, limits)[1]
    except ProtocolError as error:
        raise FormatError(
            [Finding(each.path, each.message, each.line or 0) for each in error.problems]
        ) from None


def cluster_of(value: object, place: Place, findings: Findings) -> ClusterConfig:
    """The configuration from plain data; problems are added to ``findings``."""
    depth = len(place.parts)
    file = Table(value, _FILE, place, findings)
    types = {
        name: _cell_type(table) for name, table in file.tables_by_name("cellTypes", _CELL_TYPE)
    }
    return ClusterConfig(
        cell_types=types,
        physical_cells=tuple(_cell(table) for table in file.tables("physicalCells", _CELL) or ()),
        nodes={name: _node(table) for name, table in file.tables_by_name("nodes", _NODE)},
        virtual_clusters={
            name: _virtual_cluster(table)
            for name, table in file.tables_by_name("virtualClusters", _VIRTUAL_CLUSTER)
        },
        policy=_policy(file.table("policy", _POLICY)),
        unread=frozenset(path[depth:] for path in findings.unread if path[:depth] == place.parts),
    )


def _cell_type(table: Table) -> CellType:
    table.needs("child", "count")
    return CellType(
        child=table.name("child") or "",
        count=table.count("count", least=1) or 1,
        is_node=bool(table.flag("node")),
    )


def _cell(table: Table) -> PhysicalCell:
    table.needs("type")
    children = None
    if len(table.place.parts) >= 2 * MAX_CELL_DEPTH:  # a key and a number for each level
        table.wrong("children", f"are nested too deeply: {MAX_CELL_DEPTH} levels are the most")
    else:
        found = table.tables("children", _CELL)
        children = None if found is None else tuple(_cell(child) for child in found)
    return PhysicalCell(
        type=table.name("type") or "",
        name=table.name("name"),
        nodes=table.names("nodes"),
        children=children,
        index=table.count("index"),
        pin=table.name("pin"),
        line=table.place.line,
    )


def _node(table: Table) -> NodeLimits:
    return NodeLimits(
        cpu=table.count("cpu"),
        memory_mb=table.count("memoryMB", most=MAX_NUMBER),
        ports=_ports(table),
        resources=table.counts("resources") if table.has_value("resources") else None,
    )


def _ports(table: Table) -> tuple[int, int] | None:
    ports = table.items("ports")
    if ports is None:
        return None
    match ports:
        case [int() as first, int() as last] if not (
            count_problem(first, 1, MAX_PORT) or count_problem(last, first, MAX_PORT)
        ):
            return first, last
    table.wrong("ports", f"must be the first and the last port, from 1 to {MAX_PORT}")
    return None


def _virtual_cluster(table: Table) -> VirtualCluster:
    return VirtualCluster(
        cells=tuple(_quota(cells) for cells in table.tables("cells", _QUOTA) or ()),
        pins=table.names("pins") or (),
        lending_limit=_limit(table, "lendingLimit"),
        borrowing_limit=_limit(table, "borrowingLimit"),
        line=table.place.line,
    )


def _limit(table: Table, name: str) -> Mapping[str, int]:
    """A number of GPU cells, of all types together, or by GPU type."""
    if table.has_mapping(name):
        return table.counts(name)
    count = table.count(name)
    return {} if count is None else {ALL_TYPES: count}


def _quota(table: Table) -> QuotaCells:
    table.needs("type", "count")
    return QuotaCells(table.name("type") or "", table.count("count") or 0, table.place.line)


def _policy(table: Table | None) -> Policy:
    if table is None:
        return Policy()
    given: dict[str, Any] = {
        "is_lazy": table.flag("lazyPreemption"),
        "grace_s": table.seconds("graceSeconds", most=MAX_POLICY_S),
        "is_requeued": table.flag("requeue"),
        "is_enforced": table.flag("enforceGrace"),
        "is_backfilling": table.flag("backfill"),
        "assumed_s": table.duration("assumedSeconds", MAX_POLICY_S),
        "max_pass_s": table.seconds("maxPassSeconds", most=MAX_POLICY_S),
        "min_run_s": table.seconds("minRunSeconds", most=MAX_POLICY_S),
        "preemptions_per_hour": table.count("preemptionsPerHour"),
        "is_strict": _is_strict(table),
        **_order(table),
    }
    return Policy(**{name: value for name, value in given.items() if value is not None})


def _order(table: Table) -> dict[str, Any]:
    """The order of gangs, and how fair share counts."""
    names = table.names("orderBy")
    if names == () and table.items("orderBy") == []:
        table.wrong("orderBy", "must not be empty; null orders by what is usual")
    if not table.has_mapping("fairShare"):
        is_fair = table.flag("fairShare")
        if names is None and is_fair is not None:
            names = USUAL_ORDER if is_fair else tuple(n for n in USUAL_ORDER if n != FAIR_SHARE)
        elif names is not None and is_fair is (FAIR_SHARE not in names):
            table.wrong("fairShare", "contradicts orderBy; keep one of them")
        return {"order_by": names}
    fair = table.table("fairShare", _FAIR_SHARE)
    assert fair is not None
    weights = fair.read_by_name("weights", lambda users, user: users.number(user, MAX_WEIGHT))
    return {
        "order_by": USUAL_ORDER if names is None else names,
        "half_life_s": fair.duration("halfLifeSeconds"),
        "weights": {user: float(weight) for user, weight in weights.items()},
    }


def _is_strict(table: Table) -> bool | None:
    order = table.name("order")
    if order is not None and order != STRICT:
        table.wrong("order", f"must be {STRICT}, not {order!a}; null lets gangs pass")
    return None if order is None else order == STRICT


def cluster_data(config: ClusterConfig) -> dict[str, object]:
    """A configuration as plain data, which `cluster_of` reads as the same."""
    policy = config.policy
    return {
        "cellTypes": {
            name: _without_none(
                {"child": each.child, "count": each.count, "node": each.is_node or None}
            )
            for name, each in config.cell_types.items()
        },
        "physicalCells": [_cell_data(cell) for cell in config.physical_cells],
        "nodes": {name: _node_data(node) for name, node in config.nodes.items()},
        "virtualClusters": {
            name: _virtual_cluster_data(each) for name, each in config.virtual_clusters.items()
        },
        "policy": {
            "lazyPreemption": policy.is_lazy,
            "graceSeconds": whole(policy.grace_s),
            **({} if policy.is_enforced else {"enforceGrace": False}),
            "requeue": policy.is_requeued,
            "orderBy": list(policy.order_by),
            "fairShare": _fair_share_data(policy),
            **({"order": STRICT} if policy.is_strict else {}),
            "backfill": policy.is_backfilling,
            "assumedSeconds": whole(policy.assumed_s),
            "maxPassSeconds": whole(policy.max_pass_s),
            "minRunSeconds": whole(policy.min_run_s),
            **_without_none({"preemptionsPerHour": policy.preemptions_per_hour}),
        },
    }


def _fair_share_data(policy: Policy) -> object:
    """False where it is off and nothing of it is set."""
    usual = Policy()
    is_set = (policy.half_life_s, policy.weights) != (usual.half_life_s, usual.weights)
    if FAIR_SHARE not in policy.order_by and not is_set:
        return False
    return {
        "halfLifeSeconds": whole(policy.half_life_s),
        "weights": {user: whole(weight) for user, weight in policy.weights.items()},
    }


def _cell_data(cell: PhysicalCell) -> dict[str, object]:
    children = cell.children
    return _without_none(
        {
            "type": cell.type,
            "name": cell.name,
            "nodes": None if cell.nodes is None else list(cell.nodes),
            "children": None if children is None else [_cell_data(child) for child in children],
            "index": cell.index,
            "pin": cell.pin,
        }
    )


def _node_data(node: NodeLimits) -> dict[str, object]:
    return _without_none(
        {
            "cpu": node.cpu,
            "memoryMB": node.memory_mb,
            "ports": None if node.ports is None else list(node.ports),
            "resources": None if node.resources is None else dict(node.resources),
        }
    )


def _virtual_cluster_data(each: VirtualCluster) -> dict[str, object]:
    return {
        "cells": [{"type": quota.path, "count": quota.count} for quota in each.cells],
        "pins": list(each.pins),
        **_limit_data("lendingLimit", each.lending_limit),
        **_limit_data("borrowingLimit", each.borrowing_limit),
    }


def _limit_data(name: str, limit: Mapping[str, int]) -> dict[str, object]:
    if not limit:
        return {}
    return {name: limit[ALL_TYPES] if ALL_TYPES in limit else dict(limit)}


def _without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _line(root: Node, path: str) -> int:
    """The line of the deepest value that ``path`` leads to. Names in it may have dots."""
    node, rest = root, path
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        node, rest = step
    return node.line


def _step(node: Node, path: str) -> tuple[Node, str] | None:
    """The child of ``node`` that ``path`` begins with, the longest name first; and what is left."""
    if isinstance(node.children, list):
        number, bracket, rest = path.removeprefix("[").partition("]")
        is_there = bracket and number.isdecimal() and int(number) < len(node.children)
        return (node.children[int(number)], rest.removeprefix(".")) if is_there else None
    names = node.children or {}
    for name in sorted(names, key=len, reverse=True):
        for start in (name, f'["{name}"]'):
            rest = path.removeprefix(start)
            if rest != path and (not rest or rest[0] in ".["):
                return names[name], rest.removeprefix(".")
    return None
