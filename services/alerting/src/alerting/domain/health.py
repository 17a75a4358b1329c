"""The alerts about nodes, from what their agents report of disks, GPUs and the GPU driver.

An alert begins and ends with the time of a report, so replicas that have read different reports
come to the same alerts: an older report than an alert's start or end changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from muster.contracts.nodes import Gpu, NodeReport, ProblemKind

from alerting.domain.events import Alert, Severity, Source

OF_GPUS: Mapping[ProblemKind, tuple[str, Severity]] = {
    ProblemKind.XID: ("GpuXid", Severity.CRITICAL),
    ProblemKind.MEMORY: ("GpuMemoryErrors", Severity.CRITICAL),
    ProblemKind.MISSING: ("GpuMissing", Severity.CRITICAL),
    ProblemKind.FOREIGN: ("GpuForeignProcess", Severity.WARNING),
    ProblemKind.SETUP: ("GpuSetup", Severity.WARNING),
}
OF_NODES: Mapping[ProblemKind, tuple[str, Severity]] = {
    ProblemKind.DRIVER: ("GpuDriverDown", Severity.CRITICAL),
    ProblemKind.DISK: ("NodeDiskFull", Severity.WARNING),
}
BAD_GPU = ("GpuUnhealthy", Severity.CRITICAL)
BAD_NODE = ("NodeUnhealthy", Severity.WARNING)
NAMES = frozenset(name for name, _ in (*OF_GPUS.values(), *OF_NODES.values(), BAD_GPU, BAD_NODE))
OF_ANY_GPU = frozenset(
    name for name, _ in (*OF_GPUS.values(), OF_NODES[ProblemKind.DRIVER], BAD_GPU)
)

RUNBOOK = "docs/runbook.md#nodes"


def changes(
    known: Iterable[Alert],
    nodes: Mapping[str, NodeReport | None],
    *,
    now: datetime,
    off: Collection[str] = (),
) -> tuple[Alert, ...]:
    """The alerts that begin or end. ``nodes``: the newest reports, None of a node that was removed;
    ``known``: the alerts about these nodes that fire, or ended lately; ``off``: the names of alerts
    that do not begin.
    """
    latest: dict[str, Alert] = {}
    for alert in known:
        before = latest.get(alert.fingerprint)
        if before is None or before.starts_at < alert.starts_at:
            latest[alert.fingerprint] = alert
    reports = [it for it in nodes.values() if it is not None]
    wanted = {each.fingerprint: each for report in reports for each in alerts_of(report)}
    begun = [
        each
        for ident, each in wanted.items()
        if each.name not in off and _begins(latest.get(ident), each)
    ]
    ended = []
    for ident, alert in latest.items():
        if alert.ends_at is not None or ident in wanted:
            continue
        report = nodes[alert.labels["node"]]
        if report is None:
            ended.append(alert.resolved(max(now, alert.starts_at)))
        elif report.at > alert.starts_at:
            ended.append(alert.resolved(report.at))
    return (*begun, *ended)


def _begins(latest: Alert | None, wanted: Alert) -> bool:
    if latest is None:
        return True
    return latest.ends_at is not None and wanted.starts_at > latest.ends_at


def alerts_of(report: NodeReport) -> tuple[Alert, ...]:
    """What is wrong with a node now. A driver that does not answer is one alert, however many GPUs
    it has.
    """
    bad = [gpu for gpu in report.gpus if not gpu.is_healthy]
    found = [
        _alert(report, *OF_GPUS.get(gpu.problem_kind or ProblemKind.UNKNOWN, BAD_GPU), gpu=gpu)
        for gpu in bad
        if gpu.problem_kind is not ProblemKind.DRIVER
    ]
    kinds = {report.problem_kind or ProblemKind.UNKNOWN} if report.problem else set()
    for kind in sorted(kinds | {ProblemKind.DRIVER for gpu in bad if _is_drivers(gpu)}):
        problem = report.problem if kind in kinds else next(filter(_is_drivers, bad)).problem
        found.append(_alert(report, *OF_NODES.get(kind, BAD_NODE), problem=problem))
    return tuple({each.fingerprint: each for each in found}.values())


def _is_drivers(gpu: Gpu) -> bool:
    return gpu.problem_kind is ProblemKind.DRIVER


def _alert(
    report: NodeReport,
    name: str,
    severity: Severity,
    *,
    gpu: Gpu | None = None,
    problem: str | None = None,
) -> Alert:
    labels = {"node": report.node}
    what = f"Node {report.node}"
    if gpu is not None:
        labels |= {"gpu": str(gpu.index), "uuid": gpu.uuid}
        what, problem = f"GPU {gpu.index} of node {report.node}", gpu.problem
    return Alert(
        name=name,
        severity=severity,
        summary=f"{what}: {problem or 'it is unhealthy'}"[:500].rstrip("."),
        labels=labels,
        starts_at=report.at,
        source=Source.NODE,
        runbook=RUNBOOK,
    )
