"""Three clusters in virtual time, decided by the core, by the core before, and by GPU counts alone.

Each replay prints how long gangs waited, which work was lost, and how many GPUs were in use.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusters import CELL_TYPES, NODE, NODE_CPU, RACK, racks
from scheduler.domain.core.config import (
    REQUEUE_S,
    ClusterConfig,
    NodeLimits,
    Policy,
    QuotaCells,
    VirtualCluster,
)
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import Decision, Gang, Kind, Placed, PodPlace
from scheduler.domain.formats.model import (
    CycleRun,
    Event,
    GangFile,
    GangReleased,
    GangRequested,
    NodeHealthChanged,
    Pods,
)
from scheduler.domain.simulation.run import Simulation
from w1 import GPUS_PER_NODE as GPUS
from w1 import NODES_PER_RACK, RACK_GPUS

HOUR_S = 3_600.0


@dataclass(frozen=True)
class Figures:
    """Hours of waiting of the gang in question and of all gangs on average; GPU-hours of lost
    work; GPUs in use, in percent.
    """

    gang_h: float
    mean_h: float
    lost_gpu_h: float
    used: float


OLD = {
    "scattered": Figures(0.01, 0.0, 56.2, 20.3),
    "cpu": Figures(0.0, 0.0, 0.0, 19.9),
    "lost node": Figures(4.0, 0.89, 1024.0, 38.1),
}
"""Measured once: the core before ADR 27."""


class QuotaOnly(Core):
    """Places gangs in order of arrival wherever GPUs are free; a quota is a number of GPUs. It has
    no cells and preempts nobody.
    """

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(config)
        self.free = {node: set(range(GPUS)) for node in config.nodes}
        self.cpu = dict.fromkeys(config.nodes, NODE_CPU)
        self.quota = {
            name: sum(c.count * (RACK_GPUS if c.path == RACK else GPUS) for c in each.cells)
            for name, each in config.virtual_clusters.items()
        }
        self.waiting: dict[str, Gang] = {}
        self.running: dict[str, tuple[Gang, tuple[PodPlace, ...]]] = {}

    def request(self, gang: Gang) -> None:
        self.waiting[gang.id] = gang

    def requeue(self, gang: str, until: float) -> None:
        self.release(gang)

    def release(self, gang: str) -> None:
        self.waiting.pop(gang, None)
        if gang in self.running:
            self._account(*self.running.pop(gang), sign=-1)

    def cycle(self, now: float, is_enough: object = None) -> list[Decision]:
        decisions: list[Decision] = []
        for gang in list(self.waiting.values()):
            if (places := self._places(gang)) is not None:
                del self.waiting[gang.id]
                self.running[gang.id] = gang, places
                self._account(gang, places, sign=1)
                decisions.append(Placed(gang.id, places))
        return decisions

    def _places(self, gang: Gang) -> tuple[PodPlace, ...] | None:
        (role,) = gang.roles
        wants, pods, found = role.kind, list(role.pods), list[PodPlace]()
        if gang.priority >= 0 and wants.gpus * len(pods) > self.quota[gang.virtual_cluster]:
            return None
        for node, gpus in self.free.items():
            state, free, cpu = self.nodes.of(node), sorted(gpus), self.cpu[node]
            if state is None or not state.is_healthy:
                continue
            while pods and len(free) >= wants.gpus and cpu >= wants.cpu:
                found.append(PodPlace(pods.pop(0), node, tuple(free[: wants.gpus])))
                free, cpu = free[wants.gpus :], cpu - wants.cpu
        return None if pods else tuple(found)

    def _account(self, gang: Gang, places: tuple[PodPlace, ...], sign: int) -> None:
        for place in places:
            self.free[place.node] ^= set(place.gpus)
            self.cpu[place.node] -= sign * gang.roles[0].kind.cpu
            if gang.priority >= 0:
                self.quota[gang.virtual_cluster] -= sign * len(place.gpus)


def cluster(**quota: int) -> ClusterConfig:
    """Virtual clusters with so many racks of eight nodes each, and no rack beside."""
    count = sum(quota.values())
    owned = {vc: VirtualCluster((QuotaCells(RACK, number),)) for vc, number in quota.items()}
    nodes = {f"n{number}": NodeLimits(cpu=NODE_CPU) for number in range(count * NODES_PER_RACK)}
    return ClusterConfig(CELL_TYPES, racks(count), nodes, owned, Policy())


def asked(
    at: float,
    name: str,
    vc: str,
    pods: int,
    kind: Kind,
    run_s: float,
    priority: int = 0,
    follows: str | None = None,
) -> GangRequested:
    """A gang of equal pods whose run time is known."""
    wanted = Pods("w", pods, kind)
    gang = Gang(
        name,
        vc,
        "user",
        priority,
        (wanted.role(),),
        submitted_at=at,
        expected_s=run_s,
        follows=follows,
    )
    return GangRequested(at, file=GangFile(gang, (wanted,), run_s=run_s))


@dataclass
class Replay:
    """One scheduler on one cluster; ``started``: when and where gangs started first."""

    config: ClusterConfig
    is_quota_only: bool
    requested: dict[str, float] = field(default_factory=dict)
    started: dict[str, tuple[float, tuple[PodPlace, ...]]] = field(default_factory=dict)
    lost_gpu_s: float = 0.0

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.config, warn=print)
        self.core: Any = self.simulation.core
        if self.is_quota_only:
            self.core = self.simulation.core = QuotaOnly(self.config)

    def play(self, events: Iterable[Event]) -> None:
        """Let these happen, and what the scheduler decides meanwhile."""
        for event in events:
            for now, decision in self.simulation.reach(event):
                if isinstance(decision, Placed):
                    self.started.setdefault(decision.gang, (now, decision.pods))
            self.simulation.apply(event)
            if isinstance(event, GangRequested):
                self.requested[event.file.gang.id] = event.at

    def wait_s(self, gang: str) -> float:
        """Up to its first start; up to now, if there was none."""
        now = self.simulation.tally.now
        return self.started.get(gang, (now, ()))[0] - self.requested[gang]

    def nodes(self, gang: str) -> set[int]:
        """The numbers of the nodes that it started on."""
        return {int(place.node.removeprefix("n")) for place in self.started[gang][1]}

    def figures(self, gang: str) -> Figures:
        tally = self.simulation.tally
        waits = [self.wait_s(each) for each in self.requested]
        lost = self.lost_gpu_s + sum(each.lost_gpu_s for each in tally.groups.values())
        return Figures(
            round(self.wait_s(gang) / HOUR_S, 2),
            round(sum(waits) / len(waits) / HOUR_S, 2),
            round(lost / HOUR_S, 1),
            round(100 * tally.room_s["used"] / tally.room_s["all"], 1),
        )


def side_by_side(
    name: str, config: ClusterConfig, gang: str, play: Callable[[Replay], None]
) -> tuple[Replay, Replay]:
    """The core and the scheduler without cells on the same events; their figures are printed."""
    replays = Replay(config, is_quota_only=False), Replay(config, is_quota_only=True)
    for each in replays:
        play(each)
    new, quota_only = (each.figures(gang) for each in replays)
    print(f"\n{name:24}{gang} waits h  all wait h  lost GPU-h  used %")
    for label, row in (("before", OLD[name]), ("core", new), ("quota only", quota_only)):
        print(f"{label:24}{row.gang_h:12}{row.mean_h:12}{row.lost_gpu_h:12}{row.used:8}")
    return replays


def until(hours: float, events: Sequence[Event]) -> list[Event]:
    """In order of time, up to an end."""
    return [*sorted(events, key=lambda each: each.at), CycleRun(hours * HOUR_S)]


def test_a_production_gang_gets_nodes_that_opportunistic_jobs_scatter() -> None:
    lot = random.Random(1)
    jobs = [
        asked(0.0, f"job{n}", "research", 1, Kind(1, cpu=4), lot.expovariate(1 / 4) * HOUR_S, -1)
        for n in range(4 * RACK_GPUS)
    ]
    production = asked(2 * HOUR_S, "train", "prod", 8, Kind(GPUS, cpu=64), 3 * HOUR_S, 10)
    events = until(24, [*jobs, production])
    core, quota_only = side_by_side(
        "scattered", cluster(prod=2, research=2), "train", lambda each: each.play(events)
    )
    assert core.wait_s("train") <= Policy().grace_s
    assert core.wait_s("train") < quota_only.wait_s("train")


def test_cpu_pods_over_most_racks_cost_no_gang_its_nodes() -> None:
    node = Kind(GPUS, cpu=32)
    running = [asked(0.0, f"run{n}", "prod", 1, node, (0.1, 6)[n % 2] * HOUR_S) for n in range(24)]
    whole, half = Kind(GPUS, cpu=NODE_CPU), HOUR_S / 2
    events = until(
        24,
        [
            *running,
            asked(half, "prepare", "data", 24, Kind(0, cpu=32), 12 * HOUR_S),
            *(asked(HOUR_S, f"whole{n}", "prod", 4, whole, 4 * HOUR_S) for n in range(3)),
            asked(HOUR_S + 1, "train", "data", 8, whole, 4 * HOUR_S),
        ],
    )
    core, quota_only = side_by_side(
        "cpu", cluster(prod=3, data=1), "train", lambda each: each.play(events)
    )
    assert core.wait_s("prepare") <= quota_only.wait_s("prepare")
    assert core.wait_s("train") == 0 < quota_only.wait_s("train")


def test_a_gang_that_loses_a_node_keeps_the_others() -> None:
    lost_at, again_at = HOUR_S, HOUR_S + 10
    node = Kind(GPUS, cpu=64)
    train = asked(0.0, "train", "prod", 128, node, 8 * HOUR_S)
    others = [asked(60.0 * n, f"job{n}", "prod", 3, node, n % 5 * HOUR_S) for n in range(1, 15)]
    others += [asked(30.0, f"small{n}", "prod", 1, node, 30 * HOUR_S) for n in range(10)]

    def play(replay: Replay) -> None:
        replay.play(each for each in until(0, [train, *others])[:-1] if each.at <= lost_at)
        replay.play([CycleRun(lost_at)])
        run = replay.simulation.runs["train"]
        gpus = sum(len(place.gpus) for place in run.places.values())
        replay.lost_gpu_s = run.lost_s(lost_at) * gpus
        replay.play([NodeHealthChanged(lost_at, node="n0", is_healthy=False)])
        replay.play([GangReleased(lost_at, gang="train", kept_until=lost_at + REQUEUE_S)])
        again = asked(again_at, "train-2", "prod", 128, node, 8 * HOUR_S, follows="train")
        replay.play(until(24, [again]))

    nodes = VirtualCluster((QuotaCells(NODE, 17 * NODES_PER_RACK),))
    config = replace(cluster(prod=17, nobody=1), virtual_clusters={"prod": nodes})
    core, quota_only = side_by_side("lost node", config, "train-2", play)
    assert core.wait_s("small9") > HOUR_S  # it would fit into the lost node's quota
    assert len(core.nodes("train") & core.nodes("train-2")) == 127
    assert core.wait_s("train-2") == 0 < quota_only.wait_s("train-2")
