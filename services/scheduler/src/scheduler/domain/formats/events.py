"""EVENTS: the changes of a cluster, one JSON object a line, in the order of time."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from scheduler.domain.core.building import flaws
from scheduler.domain.core.config import Finding
from scheduler.domain.core.model import GangClass, RestoredPreemption, RestoredUsage
from scheduler.domain.formats.cluster_file import cluster_of
from scheduler.domain.formats.fields import (
    MAX_FINDINGS,
    MAX_NUMBER,
    Findings,
    FormatError,
    Place,
    Table,
    fix_of,
    nearest,
)
from scheduler.domain.formats.gangs import (
    GANG,
    read_class,
    read_gang,
    read_pods,
    read_reservation,
    read_restored,
)
from scheduler.domain.formats.model import (
    ClusterChanged,
    CycleRun,
    Event,
    GangCheckpointed,
    GangGrown,
    GangReleased,
    GangRequested,
    GangRestored,
    GangsTried,
    GangWithdrawn,
    GpuHealthChanged,
    NodeBlocked,
    NodeCordoned,
    NodeDrained,
    NodeHealthChanged,
    NodeUncordoned,
    PodReleased,
    PreemptionRestored,
    ReservationRestored,
    SchedulerRestarted,
    UsageRestored,
)

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The most bytes of a line; a whole cluster is the longest content."""


class _Line:
    """A line that is being read: its fields, and its problems."""

    def __init__(
        self, value: object, known: frozenset[str], number: int, findings: Findings
    ) -> None:
        self.findings = findings
        self.table = Table(value, known, Place(number), findings)
        self.number = number
        self.at = 0.0
        self._value = value

    def name(self, field: str) -> str:
        """A required name."""
        self.table.needs(field)
        return self.table.name(field) or ""

    def cluster(self) -> object:
        """A whole configuration, unread; an empty one if it is left out."""
        self.table.needs("cluster")
        found = self._value.get("cluster") if isinstance(self._value, dict) else None
        return {} if found is None else found

    def gang(self) -> Table:
        """The gang's own fields."""
        self.table.needs("gang")
        found = self.table.table("gang", GANG)
        return found or Table({}, GANG, self.table.place.at("gang"), Findings())


def _gang_requested(line: _Line) -> Event:
    file = read_gang(line.gang(), line.at)
    return GangRequested(line.at, file, line.table.name("published"), line=line.number)


def _gang_restored(line: _Line) -> Event:
    file = read_gang(line.gang(), line.at)
    restored = read_restored(line.table, file, line.at)
    return GangRestored(line.at, file, restored, line.table.name("published"), line=line.number)


def _gang_checkpointed(line: _Line) -> Event:
    saved_at = line.table.seconds("savedAt", -MAX_NUMBER)
    if saved_at is not None and saved_at > line.at:
        line.table.wrong("savedAt", "must not be after at")
    return GangCheckpointed(line.at, line.name("gang"), saved_at, line=line.number)


def _gang_released(line: _Line) -> Event:
    kept_until = line.table.seconds("keptUntil", -MAX_NUMBER)
    return GangReleased(line.at, line.name("gang"), kept_until, line=line.number)


def _pod_released(line: _Line) -> Event:
    is_lost = bool(line.table.flag("lost"))
    return PodReleased(line.at, line.name("gang"), line.name("pod"), is_lost, line=line.number)


def _gang_grown(line: _Line) -> Event:
    line.table.needs("pods")
    gang = line.name("gang")
    pods = read_pods(line.table, are_more=True)
    reason = line.table.name("published")
    is_elastic = bool(line.table.flag("elastic"))
    return GangGrown(line.at, gang, pods, reason, is_elastic, line=line.number)


def _node_blocked(line: _Line) -> Event:
    table = line.table
    return NodeBlocked(
        line.at,
        line.name("node"),
        table.numbers("gpus") or (),
        table.count("cpu") or 0,
        table.count("memoryMB", most=MAX_NUMBER) or 0,
        table.numbers("ports") or (),
        table.numbers("avoided") or (),
        line=line.number,
    )


def _reservation_restored(line: _Line) -> Event:
    table = line.table
    table.needs("cells", "startsAt", "since")
    restored = read_reservation(table, line.name("gang"))
    return ReservationRestored(line.at, restored, line=line.number)


def _usage_restored(line: _Line) -> Event:
    table = line.table
    table.needs("virtualCluster", "user", "class", "used", "usedAt")
    amounts = table.read_by_name("used", lambda used, name: used.seconds(name))
    kind = read_class(table, GangClass.GUARANTEED, GangClass.OPPORTUNISTIC)
    restored = RestoredUsage(
        virtual_cluster=table.name("virtualCluster") or "",
        user=table.name("user") or "",
        is_opportunistic=kind is GangClass.OPPORTUNISTIC,
        at=table.seconds("usedAt", -MAX_NUMBER) or 0.0,
        used=amounts,
    )
    return UsageRestored(line.at, restored, line=line.number)


def _preemption_restored(line: _Line) -> Event:
    table = line.table
    table.needs("preemptedAt")
    at = table.seconds("preemptedAt", -MAX_NUMBER) or 0.0
    if at > line.at:
        table.wrong("preemptedAt", "must not be after at")
    restored = RestoredPreemption(
        at, line.name("job"), line.name("forJob"), table.name("virtualCluster")
    )
    return PreemptionRestored(line.at, restored, line=line.number)


def _cycle(line: _Line) -> Event:
    is_settled = line.table.flag("settled")
    most = line.table.count("most", least=0)
    return CycleRun(line.at, most, is_settled is not False, line=line.number)


def _gangs_tried(line: _Line) -> Event:
    is_settled = line.table.flag("settled")
    return GangsTried(line.at, is_settled is not False, line=line.number)


def _scheduler_restarted(line: _Line) -> Event:
    line.table.flag("gap")  # for people: the record has a gap before this event
    return SchedulerRestarted(line.at, line=line.number)


def _cluster_changed(line: _Line) -> Event:
    place = line.table.place.at("cluster")
    config = cluster_of(line.cluster(), place, line.findings)
    if line.findings.found:
        wrong = (
            Finding(f"cluster.{each.path}", each.message, line.number) for each in flaws(config)
        )
        line.findings.found.extend(wrong)
    return ClusterChanged(line.at, config, line=line.number)


def _node_health(is_healthy: bool) -> "Callable[[_Line], Event]":
    return lambda line: NodeHealthChanged(line.at, line.name("node"), is_healthy, line=line.number)


def _gpu_health(is_healthy: bool) -> "Callable[[_Line], Event]":
    def read(line: _Line) -> Event:
        line.table.needs("gpu")
        gpu = line.table.count("gpu") or 0
        return GpuHealthChanged(line.at, line.name("node"), gpu, is_healthy, line=line.number)

    return read


def _known(*fields: str) -> frozenset[str]:
    return frozenset(("at", "event", *fields))


_OF_GANG = _known("gang")
_OF_NODE = _known("node")
_OF_GPU = _known("node", "gpu")
_OF_WAITING = _known("gang", "published")
_OF_RESTORED = _known(
    "gang",
    "published",
    "placement",
    "class",
    "cells",
    "startedAt",
    "preemptedUntil",
    "preemptedFor",
    "reserved",
    "backfilledOn",
    "checkpointedAt",
    "extra",
    "lender",
)
_OF_USAGE = _known("virtualCluster", "user", "class", "used", "usedAt")
_OF_PREEMPTION = _known("preemptedAt", "job", "forJob", "virtualCluster")
_OF_RESERVATION = _known(
    "gang", "cells", "startsAt", "since", "bound", "held", "patientUntil", "keptOf"
)

_EVENTS: Mapping[str, tuple[frozenset[str], Callable[[_Line], Event]]] = {
    "gang-requested": (_OF_WAITING, _gang_requested),
    "gang-released": (_known("gang", "keptUntil"), _gang_released),
    "gang-withdrawn": (_OF_GANG, lambda it: GangWithdrawn(it.at, it.name("gang"), line=it.number)),
    "gang-checkpointed": (_known("gang", "savedAt"), _gang_checkpointed),
    "gang-grown": (_known("gang", "pods", "published", "elastic"), _gang_grown),
    "gang-restored": (_OF_RESTORED, _gang_restored),
    "reservation-restored": (_OF_RESERVATION, _reservation_restored),
    "usage-restored": (_OF_USAGE, _usage_restored),
    "preemption-restored": (_OF_PREEMPTION, _preemption_restored),
    "pod-released": (_known("gang", "pod", "lost"), _pod_released),
    "node-bad": (_OF_NODE, _node_health(is_healthy=False)),
    "node-healthy": (_OF_NODE, _node_health(is_healthy=True)),
    "gpu-bad": (_OF_GPU, _gpu_health(is_healthy=False)),
    "gpu-healthy": (_OF_GPU, _gpu_health(is_healthy=True)),
    "node-cordoned": (_OF_NODE, lambda it: NodeCordoned(it.at, it.name("node"), line=it.number)),
    "node-drained": (_OF_NODE, lambda it: NodeDrained(it.at, it.name("node"), line=it.number)),
    "node-uncordoned": (
        _OF_NODE,
        lambda it: NodeUncordoned(it.at, it.name("node"), line=it.number),
    ),
    "node-blocked": (
        _known("node", "gpus", "cpu", "memoryMB", "ports", "avoided"),
        _node_blocked,
    ),
    "cluster-changed": (_known("cluster"), _cluster_changed),
    "cycle": (_known("most", "settled"), _cycle),
    "gangs-tried": (_known("settled"), _gangs_tried),
    "scheduler-restarted": (_known("gap"), _scheduler_restarted),
}


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events line by line; empty lines are skipped.

    Raises FormatError with all problems of the file. From the first wrong line on nothing is
    yielded, but the rest of the file is still read for other problems.
    """
    found: list[Finding] = []
    more = 0
    at = 0.0
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        findings = Findings(listed=MAX_FINDINGS - len(found))
        event = _read(data, number, at, findings)
        found += findings.found[: findings.listed]
        more += max(0, len(findings.found) - findings.listed)
        if event is not None:
            at = event.at
            if not found:
                yield event
    if found:
        raise FormatError(found, more)


def _read(data: bytes, number: int, last_at: float, findings: Findings) -> Event | None:
    """One line's event; None where something is wrong."""
    place = Place(number)
    value = _json(data, place, findings)
    if findings.found:
        return None
    if not isinstance(value, dict):
        findings.add(place, 'must be a JSON object like {"at":0,"event":"node-bad",…}')
        return None
    name = value.get("event")
    kind = _EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        near = nearest(name, _EVENTS) if isinstance(name, str) and findings.listed else None
        what = "is missing" if name is None else "is unknown"
        findings.add(place.at("event"), f"{what}; {fix_of(near, _EVENTS)}")
        return None
    known, read = kind
    line = _Line(value, known, number, findings)
    line.table.needs("at")
    line.at = line.table.seconds("at") or 0.0
    if not findings.found and line.at < last_at:
        line.table.wrong("at", f"must not be before {last_at:.15g}, the line before")
    event = read(line)
    return None if findings.found else event


def _json(data: bytes, place: Place, findings: Findings) -> object:
    if len(data) > MAX_LINE_BYTES:
        findings.add(place, f"is longer than {MAX_LINE_BYTES} bytes, the most in a line")
        return None
    try:
        return _DECODER.decode(data.decode().rstrip())
    except UnicodeDecodeError as error:
        findings.add(place, f"is not UTF-8 from byte {error.start + 1} on; save the file as UTF-8")
    except json.JSONDecodeError as error:
        findings.add(place, f"is not JSON at character {error.pos + 1}: {error.msg}")
    except _WrongJsonError as error:
        findings.add(place, str(error))
    except RecursionError:
        findings.add(place, "is nested too deeply")
    except ValueError:
        findings.add(place, "has a number of too many digits")
    return None


class _WrongJsonError(Exception):
    """Python's JSON reader accepts this, and other readers do not."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise _WrongJsonError(f"has the key {twice[:80]!a} twice; keep one of them")
    return found


def _refuse_constant(name: str) -> object:
    raise _WrongJsonError(f"has {name}, which is no number in JSON; write a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
