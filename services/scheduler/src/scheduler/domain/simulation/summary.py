"""A simulation in numbers: as plain data, and as text that fits a terminal of 80 columns."""

from collections.abc import Iterable, Iterator, Mapping

from scheduler.domain.core.fragmentation import share
from scheduler.domain.formats.writing import whole
from scheduler.domain.simulation.figures import (
    Data,
    length,
    number,
    percent,
    quantile,
    rounded,
    table,
)
from scheduler.domain.simulation.gang_run import GangRun
from scheduler.domain.simulation.tally import Group, Tally


def summary(tally: Tally, runs: Mapping[str, GangRun]) -> Data:
    """Sums of a simulation; ``runs`` are the gangs that are not over. Times are seconds."""
    begins_at = tally.begins_at or 0.0
    waiting = [run for run in runs.values() if run.started_at is None]
    return {
        "from": whole(begins_at),
        "to": whole(tally.now),
        "gpus": _gpus(tally),
        "fragmentation": list(_fragmentation(tally)),
        "preemptions": sum(group.preempted for group in tally.groups.values()),
        "preemptionsCancelled": tally.cancelled,
        "downgrades": sum(group.downgraded for group in tally.groups.values()),
        "upgrades": tally.upgraded,
        "lostGpuSeconds": rounded(sum(group.lost_gpu_s for group in tally.groups.values())),
        "running": len(runs) - len(waiting),
        "groups": [
            {"virtualCluster": name, "class": kind} | _group(group)
            for (name, kind), group in sorted(tally.groups.items())
        ],
        "waiting": list(_waiting(waiting, tally.now)),
    }


def _gpus(tally: Tally) -> Data:
    """Means over time. Shares are of all GPUs; of what is free, those in whole nodes and racks."""
    elapsed_s = tally.now - (tally.begins_at or 0.0)
    mean = rounded(tally.room_s["all"] / elapsed_s) if elapsed_s else tally.space.room.all
    return {
        "mean": mean,
        "used": _share(tally, "used", "all"),
        "free": _share(tally, "free", "all"),
        "freeInWholeNodes": _share(tally, "in_free_nodes", "free"),
        "freeInWholeRacks": _share(tally, "in_free_racks", "free"),
    }


def _fragmentation(tally: Tally) -> Iterator[Data]:
    """By chain and type of cell: over time, the share of free GPUs outside wholly free cells of
    that type.
    """
    elapsed_s = tally.now - (tally.begins_at or 0.0)
    free_s = 0.0
    previous: str | None = None
    for (chain, cell), whole_s in tally.whole_s.items():
        if chain != previous:  # each chain begins with its leaves
            previous, free_s = chain, whole_s
            continue
        found = share(free_s, whole_s)
        yield {
            "chain": chain,
            "cell": cell,
            "free": rounded(free_s / elapsed_s),
            "unusable": None if found is None else rounded(found),
        }


def _share(tally: Tally, part: str, of: str) -> float | int | None:
    share_ = tally.share(part, of)
    return None if share_ is None else rounded(share_)


def _group(group: Group) -> Data:
    waits_s = sorted(group.waits_s)
    return {
        "requested": group.requested,
        "restored": group.restored,
        "started": len(waits_s),
        "refused": group.refused,
        "preempted": group.preempted,
        "downgraded": group.downgraded,
        "lostGpuSeconds": rounded(group.lost_gpu_s),
        "waitSeconds": {
            "mean": rounded(sum(waits_s) / len(waits_s)) if waits_s else None,
            "p50": quantile(waits_s, 0.50),
            "p95": quantile(waits_s, 0.95),
            "max": quantile(waits_s, 1.0),
        },
    }


def _waiting(runs: Iterable[GangRun], now: float) -> Iterator[Data]:
    by_code: dict[tuple[str, str], list[GangRun]] = {}
    for run in runs:
        by_code.setdefault((run.gang.virtual_cluster, run.code or "new"), []).append(run)
    for (virtual_cluster, code), those in sorted(by_code.items()):
        yield {
            "virtualCluster": virtual_cluster,
            "code": code,
            "gangs": len(those),
            "gpus": sum(run.wanted_gpus for run in those),
            "longestSeconds": rounded(max(now - run.waits_since for run in those)),
        }


def summary_text(content: Data) -> str:
    """`summary`'s data for people; no line is wider than 80 columns."""
    room, groups, waiting = content["gpus"], content["groups"], content["waiting"]
    begins, ends, lost = content["from"], content["to"], content["lostGpuSeconds"]
    assert isinstance(room, dict)
    assert isinstance(groups, list)
    assert isinstance(waiting, list)
    assert isinstance(begins, int | float)
    assert isinstance(ends, int | float)
    assert isinstance(lost, int | float)
    lines = [
        f"Simulated      {length(ends - begins)}, from {round(begins, 1):.15g}"
        f" to {round(ends, 1):.15g} s",
        f"GPUs           {number(room['mean'])}; used {percent(room['used'])},"
        f" free {percent(room['free'])}",
        f"Free GPUs      {percent(room['freeInWholeNodes'])} in whole free nodes,"
        f" {percent(room['freeInWholeRacks'])} in whole free racks",
        f"Preemptions    {content['preemptions']} ({content['preemptionsCancelled']} cancelled),"
        f" {content['downgrades']} downgrades, {content['upgrades']} upgrades",
        f"Lost by them   {number(lost)} GPU-seconds",
        f"At the end     {content['running']} gangs run,"
        f" {sum(each['gangs'] for each in waiting)} wait",
        "",
        *table(
            ("VIRTUAL CLUSTER", "CLASS", "STARTED", "WAIT MEAN", "P50", "P95", "MAX"),
            [_wait_row(each) for each in groups],
        ),
        "",
        *table(
            ("VIRTUAL CLUSTER", "CLASS", "ASKED", "REFUSED", "PREEMPTED", "LOST GPU-S"),
            [_fate_row(each) for each in groups],
        ),
    ]
    if content["fragmentation"]:
        lines += ["", *_pieces(content["fragmentation"])]
    if waiting:
        lines += [
            "",
            *table(
                ("STILL WAITS", "CODE", "GANGS", "GPUS", "LONGEST"),
                [
                    (
                        each["virtualCluster"],
                        each["code"],
                        each["gangs"],
                        each["gpus"],
                        length(each["longestSeconds"]),
                    )
                    for each in waiting
                ],
            ),
        ]
    return "\n".join(lines) + "\n"


def _pieces(fragmentation: object) -> Iterator[str]:
    assert isinstance(fragmentation, list)
    return table(
        ("CHAIN", "WHOLE CELLS", "GPUS FREE", "OF NO USE"),
        [
            (each["chain"], each["cell"], number(each["free"]), percent(each["unusable"]))
            for each in fragmentation
        ],
    )


def _wait_row(each: Data) -> tuple[object, ...]:
    waits = each["waitSeconds"]
    assert isinstance(waits, dict)
    lengths = [length(waits[name]) for name in ("mean", "p50", "p95", "max")]
    return (each["virtualCluster"], each["class"], each["started"], *lengths)


def _fate_row(each: Data) -> tuple[object, ...]:
    names = ("virtualCluster", "class", "requested", "refused", "preempted")
    lost = each["lostGpuSeconds"]
    assert isinstance(lost, int | float)
    return (*(each[name] for name in names), number(lost))
