"""The tables that `make bench-scheduler` prints, with HiveD's figures and the aims beside ours.

HiveD's are CPU figures of its own Go program on the first window of the same stream, one thread,
on a quiet machine with 2 cores: another machine than this one, so no ratio is printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from footprint import Footprint
from meter import Meter
from quality import Quality
from rich import box
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Peer:
    """HiveD in the steady phase; ``in_one_rack``: gangs of more than one pod, of those placed."""

    gangs_per_s: int
    p50_us: int
    p99_us: int
    utilisation: float
    waits: int
    in_one_rack: tuple[int, int]
    mean_span: float
    best_share: float
    start_s: float
    memory_mb: int


HIVED = {
    128: Peer(1_299, 380, 4_400, 0.788, 230, (118, 1_021), 2.4, 0.941, 0.04, 40),
    1_024: Peer(781, 670, 9_600, 0.895, 0, (50, 239), 2.7, 0.953, 0.8, 90),
    4_096: Peer(355, 1_550, 19_800, 0.899, 0, (19, 74), 2.5, 0.981, 18.9, 247),
}
ONE_RACK_AIMS = {128: 0.58, 1_024: 0.85, 4_096: 0.97}
WAITS_AIMS = {128: 230, 1_024: 0, 4_096: 0}
AIM_PER_S, AIM_HARD_PER_S = 10_000, 5_000
AIM_FLAT, AIM_P99_US, AIM_PAUSE_MS, AIM_START_S = 1.5, 1_000, 20, 5


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of rates. ``tidy_ms``: the longest call of the garbage collector, which
    is between gangs.
    """

    nodes: int
    what: str
    meter: Meter
    tidy_ms: float


def slim(title: str, heads: Sequence[str]) -> Table:
    """A table that fits 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def rates(title: str, rows: Sequence[Row], has_peer: bool) -> Table:
    """Gangs a second, and how long one takes."""
    heads = [
        "nodes",
        "",
        "placed",
        "per\nCPU-s",
        "normed",
        "loop\nns",
        "p50\nµs",
        "p99\nµs",
        "of\nCPU",
    ]
    heads += ["max\nms", "of\nCPU", "GC\nms"]
    table = slim(title, [*heads, *(["HiveD\nper s"] if has_peer else [])])
    for row in rows:
        meter, peer = row.meter, HIVED.get(row.nodes) if row.what == "steady" else None
        cells = [
            f"{row.nodes:,}",
            row.what,
            f"{meter.done:,}",
            f"{meter.per_s:,.0f}",
            f"{meter.normed_per_s:,.0f}",
            f"{meter.loop_range[1]:.0f}",
            f"{meter.wall_us(0.5):,.0f}",
            f"{meter.wall_us(0.99):,.0f}",
            f"{meter.cpu_us(0.99):,.0f}",
            f"{meter.longest_wall_ms:.1f}",
            f"{meter.longest_cpu_ms:.1f}",
            f"{row.tidy_ms:.1f}",
        ]
        table.add_row(*cells, *([f"{peer.gangs_per_s:,}" if peer else ""] if has_peer else []))
    return table


def qualities(title: str, rows: Sequence[tuple[int, str, Quality]]) -> Table:
    """How good the places are, beside HiveD's on the same arrivals."""
    heads = ["nodes", "seed", "came", "use", "waits", "one rack", "of\nall"]
    heads += ["racks\nmean", "best\nblock", "better\nfree", "HiveD\nwaits", "one\nrack"]
    table = slim(title, heads)
    for nodes, seed, quality in rows:
        peer = HIVED.get(nodes)
        placed = len(quality.spans)
        theirs: tuple[str, ...] = ()
        if peer:
            share = peer.in_one_rack[0] / peer.in_one_rack[1]
            theirs = (f"{peer.waits}", f"{share:.0%}")
        table.add_row(
            f"{nodes:,}",
            seed,
            f"{quality.arrived:,}",
            f"{quality.utilisation:.1%}",
            f"{quality.waits:,}",
            f"{quality.in_one_rack}/{placed}",
            f"{quality.in_one_rack_of_arrived:.1%}",
            f"{quality.mean_span:.2f}",
            f"{quality.best_share:.2%}",
            f"{quality.worse_pods}",
            *theirs,
        )
    return table


def footprints(rows: Sequence[tuple[int, Footprint]]) -> Table:
    """Start-up and memory."""
    heads = [
        "nodes",
        "start\nCPU-s",
        "built\nMB",
        "filled\nMB",
        "gangs",
        "HiveD:\nstart s",
        "peak\nMB",
    ]
    table = slim("Start-up and memory, each in a new process", heads)
    for nodes, one in rows:
        peer = HIVED.get(nodes)
        table.add_row(
            f"{nodes:,}",
            f"{one.start_cpu_s:.2f}",
            f"{one.built_mb:.1f}",
            f"{one.filled_mb:.1f}",
            f"{one.gangs:,}",
            f"{peer.start_s}" if peer else "> 235",
            f"{peer.memory_mb}" if peer else "",
        )
    return table
