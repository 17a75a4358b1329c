"""What the core is given is written down so that the simulator decides the same again."""

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest, PodAsk, PodRelease
from muster.contracts.node_orders import Order
from muster.contracts.nodes import PodOnNode
from scheduler.domain.core.config import Finding
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import Decision
from scheduler.domain.formats.cluster_change import ClusterChange
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.writing import to_line, whole
from scheduler.domain.given import recorded
from scheduler.domain.rules import Rules
from scheduler.domain.simulation.recording import Replay
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide
from scheduler.domain.simulation.workload import Workload, enforcing
from scheduler.domain.state import State
from seeds import blocks
from snapshots import take

Kit = Any
NODES, GPUS = ("n0", "n1", "n2", "n3"), 4
STEPS = 40

TYPES = {
    "pair": {"child": "t", "count": 2},
    "node": {"child": "pair", "count": 2, "node": True},
    "rack": {"child": "node", "count": 2},
}
RACKS = [
    {"type": "rack", "name": "r0", "nodes": ["n0", "n1"]},
    {"type": "rack", "name": "r1", "nodes": ["n2", "n3"]},
]


POLICIES: list[dict[str, Any]] = [
    {},
    {},
    {"backfill": True, "assumedSeconds": 40, "maxPassSeconds": 60},
    {"backfill": True, "fairShare": {"halfLifeSeconds": 30}},
    {"order": "strict", "fairShare": {"halfLifeSeconds": 30}},
]


def file(a: int, b: int, *, lazy: bool = False, racks: int = 2, **policy: Any) -> Any:
    """A cluster of whose nodes ``a`` and ``b`` own so many."""
    data = {
        "cellTypes": TYPES,
        "physicalCells": RACKS[:racks],
        "virtualClusters": {
            name: {"cells": [{"type": "rack/node", "count": count}]}
            for name, count in (("default", a), ("b", b))
        },
        "policy": {"lazyPreemption": lazy, "graceSeconds": 5} | policy,
    }
    return read_cluster(json.dumps(data).encode()).config


@dataclass
class Told:
    """A state with all that its core decides, and what is written down of it. ``loss``: nodes run
    pods (``unplaced``) that gangs will ask for (``names``), as if their placements had been lost.
    """

    kit: Kit
    chance: random.Random
    state: State
    at: float = 1000.0
    decided: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    messages: dict[str, GangRequest] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))
    alive: set[str] = field(default_factory=set)
    loss: random.Random | None = None
    names: list[str] = field(default_factory=list)
    unplaced: dict[str, PodOnNode] = field(default_factory=dict)
    adopted: int = 0

    def __post_init__(self) -> None:
        run = self.state.given.run

        def listening(at: float, is_enough: Any, *, is_settled: bool) -> list[Decision]:
            found = run(at, is_enough, is_settled=is_settled)
            self.decided += [decision_line(at, decision) for decision in found]
            return found

        self.state.given.run = listening  # type: ignore[method-assign]

    def begin(self) -> Any:
        """From here on all is written down; the answer is the CLUSTER."""
        self.state.given.is_recording = True
        self.lines += [to_line(event) for event in take(self.state.core).events()]
        return recorded(self.state.core.forest.config)

    def cycle(self) -> None:
        """One cycle, some time later."""
        self.at = round(self.at + self.chance.choice([0.001, 0.5, 3, 20]), 3)
        if self.state.is_outdated and not self.state.is_under_way:
            self.state.change(self.state.file, self.at)
        self.state.decide(self.at, self.at)
        self.adopted += len(self.state.take_changes().adopted)
        self.write()

    def whole_cycle(self) -> None:
        """One cycle to its end, each part some time after the one before."""
        self.cycle()
        while self.state.is_under_way:
            self.cycle()

    def write(self) -> None:
        """What a transaction would write."""
        for noted in self.state.given.take_noted():
            waiting = [line for line in self.lines if not line.startswith('{"at"')]
            del self.lines[len(self.lines) - len(waiting) :]
            for line in (*waiting, *noted.lines):
                self.lines.append(f'{{"at":{whole(noted.at)},{line[1:]}')

    # What happens.

    def report(self, node: str, **more: Any) -> None:
        """A node's report of the pods that are there, and of some that nobody knows."""
        revision = self.revisions[node] = self.revisions.get(node, 0) + 1
        known = self.state.ledger.nodes.get(node)
        holds = {} if known is None else known.holds
        pods = [h for h in holds.values() if h.is_wanted or self.chance.random() < 0.3]
        held = {hold.pod: hold.placement.gpus for hold in pods}
        message = self.kit.report(
            node,
            revision=revision,
            gpus=GPUS,
            holding=held,
            bad=tuple(g for g in range(GPUS) if self.chance.random() < 0.05),
            lease=0 if known is None else known.lease,
            **more,
        )
        if self.chance.random() < 0.2:
            stranger = PodOnNode(pod="x-0-x-0-0", gpus=(0,), ports=(20003,), cpu=3, memory_mb=5)
            message = message.model_copy(
                update={"pods": (*message.pods, stranger), "foreign_ports": (20001,)}
            )
        if self.loss is not None:
            runs = self._runs(node, self.loss)
            more = (runs,) if runs is not None and runs.pod not in holds else ()
            message = message.model_copy(update={"pods": (*message.pods, *more)})
        self.state.report(message, self.at)
        self.state.ledger.receive(node, message.journal, self.at)

    def _runs(self, node: str, chance: random.Random) -> PodOnNode | None:
        """A pod that the node runs, from some time on and for some time."""
        messages = [
            message for message in self.messages.values() if message.virtual_cluster == "default"
        ]
        pods = [ask.pod for message in messages for ask in message.pods]
        waiting = sorted(pod for pod in pods if self.state.ledger.hold_of(pod) is None)
        gpus = (chance.randrange(GPUS),)
        if waiting and chance.random() < 0.1:
            self.unplaced[node] = PodOnNode(pod=chance.choice(waiting), gpus=gpus)
        elif chance.random() < 0.1:
            name = f"g{next(self.numbers):03d}-0"
            self.names.append(name)
            self.unplaced[node] = PodOnNode(pod=f"{name}-w-0-0", gpus=gpus)
        elif chance.random() < 0.2:
            self.unplaced.pop(node, None)
        return self.unplaced.get(node)

    def ask(self) -> None:
        """A new gang, with pods of one or two roles."""
        is_lost = bool(self.names)
        name = self.names.pop(0) if is_lost else f"g{next(self.numbers):03d}-0"
        pods = tuple(
            ask for role in self.chance.choice(["w", "w", "wv"]) for ask in self._asks(name, role)
        )
        message = self.kit.gang(
            name, *pods, priority=self.chance.choice([-1, 0, 5, 9]), age=self.at
        )
        vc = self.chance.choice(["default", "default", "b", "none"])
        self.say(
            message.model_copy(
                update={
                    "virtual_cluster": "default" if is_lost else vc,
                    "submitted_at": self.kit.start + timedelta(seconds=self.at),
                    "lazy_preemption": self.chance.choice([None, True, False]),
                    "group": self.chance.choice([None, "near"]),
                    "job": self.chance.choice([name, "job"]),
                    "user": self.chance.choice(["ada", "bob"]),
                    "limit_s": self.chance.choice([None, 5, 60]),
                    "expected_s": self.chance.choice([None, None, 3, 50]),
                }
            )
        )

    def _asks(self, gang: str, role: str) -> list[PodAsk]:
        gpus = self.chance.choice([0, 1, 1, 2, 4])
        more = self.chance.choice([{}, {"cpu": 8}, {"ports": {"http": 1}}, {"cpu": 70}])
        least = self.chance.choice([9, 9, 1, 0 if role == "v" else 1])
        return [
            PodAsk(
                pod=f"{gang}-{role}-{index}-0",
                role=role,
                gpus=gpus,
                surplus=index >= least,
                **more,
            )
            for index in range(self.chance.choice([1, 1, 2, 3, 6]))
        ]

    def say(self, message: GangRequest) -> None:
        """The Launcher's word."""
        self.messages[message.gang] = message
        if not message.pods:
            del self.messages[message.gang]
        self.state.request(message, self.at, self.at)

    def save(self) -> None:
        """A gang's work was saved some time ago."""
        if self.messages:
            message = self.messages[self.chance.choice(sorted(self.messages))]
            ago = self.chance.choice([0, 1, 30])
            at = datetime.fromtimestamp(self.at - ago, UTC)
            self.say(message.model_copy(update={"checkpointed_at": at}))

    def end(self) -> None:
        """Some pods of a gang end, of which some are wanted again under other names."""
        if not self.messages:
            return
        message = self.messages[self.chance.choice(sorted(self.messages))]
        over = {ask.pod for ask in message.pods if self.chance.random() < 0.6}
        ended = []
        for pod in sorted(over):
            hold = self.state.ledger.hold_of(pod)
            if hold is not None:
                node = hold.placement.node
                revision = self.revisions[node] + self.chance.choice([0, 1])
                ended.append(
                    PodRelease(pod=pod, journal=hold.placement.journal, report_revision=revision)
                )
        pods = [ask for ask in message.pods if ask.pod not in over]
        if self.chance.random() < 0.4:
            pods += [_again(ask) for ask in message.pods if ask.pod in over]
        self.say(message.model_copy(update={"pods": tuple(pods), "released": tuple(ended)}))

    def lose(self) -> None:
        """A node is lost, or back."""
        node = self.chance.choice(NODES)
        known = self.state.ledger.nodes.get(node)
        if known is not None and known.is_lost:
            self.state.ledger.take_back(node)
        elif known is not None:
            self.state.lose(node, self.at)

    def order(self) -> None:
        """An operator's order."""
        self.state.order(self.chance.choice(NODES), self.chance.choice(list(Order)))

    def change(self) -> None:
        """Another file, where there is one."""
        if self.state.file is None:
            return
        a = self.chance.randint(0, 4)
        racks = self.chance.choice([2, 2, 1])
        lazy, policy = self.chance.random() < 0.5, self.chance.choice(POLICIES)
        config = file(a, 4 - a, lazy=lazy, racks=racks, **policy)
        with contextlib.suppress(ConfigError):
            self.state.change(config, self.at)

    def happen(self) -> None:
        """Something does; while a cycle is under way only what is not taken at once."""
        what = [self.ask, self.end, self.save, self.lose, self.change, self.order]
        weights = [10, 8, 2, 1, 1, 1]
        for _ in range(self.chance.choice([0, 1, 1, 3])):
            first = 5 if self.state.is_under_way else 0
            self.chance.choices(what[first:], weights[first:])[0]()
        for node in NODES:
            if self.chance.random() < 0.3:
                self.report(node, cpu=self.chance.choice([64] * 9 + [80]))


def _again(ask: PodAsk) -> PodAsk:
    name, attempt = ask.pod.rsplit("-", 1)
    return ask.model_copy(update={"pod": f"{name}-{int(attempt) + 1}"})


def told(kit: Kit, seed: int, *, is_losing: bool = False) -> Told:
    """A state of a random kind; some with a file, some without. ``is_losing``: its store has lost
    placements.
    """
    chance = random.Random(seed)
    rules = Rules(
        settle_s=chance.choice([0.0, 10.0]), cycle_gangs=chance.choice([1, 2, 500]), overdue_s=30.0
    )
    config = None if chance.random() < 0.5 else file(2, 2, **chance.choice(POLICIES))
    it = Told(kit, chance, kit.state(rules=rules, file=config))
    it.loss = random.Random(seed) if is_losing else None
    return it


def replayed(cluster: Any, lines: list[str]) -> tuple[list[str], Simulation]:
    """What the simulator decides on a recording, and its cluster then."""
    config = read_cluster(json.dumps(cluster).encode()).config
    simulation = Simulation(config, lambda _: None)
    events = read_events(line.encode() for line in lines)
    return [decision_line(at, found) for at, found in simulation.run(events)], simulation


@pytest.mark.parametrize("is_losing", [False, True])
@pytest.mark.parametrize("block", blocks(20, deep=200, size=20))
def test_the_simulator_decides_on_a_recording_as_the_service_did(
    kit: Kit, block: range, is_losing: bool
) -> None:
    adopted = 0
    for seed in block:
        it = told(kit, seed, is_losing=is_losing)
        for _ in range(it.chance.choice([0, 5])):
            it.happen()
            it.cycle()
        while it.state.is_under_way:  # no snapshot is taken then
            it.cycle()
        cluster = it.begin()
        it.decided.clear()
        for _ in range(STEPS):
            it.happen()
            it.cycle()
        while it.state.is_under_way:
            it.cycle()
        again, simulation = replayed(cluster, it.lines)
        assert again == it.decided, seed
        assert left(simulation.core) == left(it.state.core), seed
        adopted += it.adopted
    assert bool(adopted) == is_losing


@pytest.mark.parametrize("block", blocks(6, deep=30, size=6))
def test_any_recording_can_be_asked_what_if(kit: Kit, block: range) -> None:
    """Whatever happens in it, nothing of it can't be; and of the gangs whose run times it tells all
    that start end by themselves, with its cluster and with another one.
    """
    for seed in block:
        print(f"seed {seed}")
        it = told(kit, seed, is_losing=seed % 2 == 1)
        cluster = it.begin()
        for _ in range(STEPS):
            it.happen()
            it.whole_cycle()
        config = read_cluster(json.dumps(cluster).encode()).config
        ready = [line.encode() for line in it.lines]
        recording = Replay(Simulation(config, lambda _: None)).run(read_events(ready))
        change = ClusterChange(policy={"lazyPreemption": it.chance.random() < 0.5})
        pair = SideBySide(
            *(enforcing(Simulation(config, no_word), no_word) for _ in range(2)), change, no_word
        )
        for _ in pair.run(Workload(recording).events(read_events(ready))):
            pass
        assert pair.gangs >= len(recording.histories)
        for side in (pair.before, pair.after):
            running = (run for run in side.simulation.runs.values() if run.started_at is not None)
            assert not [run.gang.id for run in running if run.run_s is not None], seed


def no_word(_: Finding) -> None:
    """Nobody is told."""


def left(cluster: Any) -> list[Any]:
    """All that is in a cluster; what its entries of pods are called has no meaning, nor has how
    those that want the same are parted, once they are asked for.
    """
    events: list[Any] = list(take(cluster).events())
    for event in events:
        gang = event.get("gang")
        holder = gang if isinstance(gang, dict) else event
        if "pods" in holder:
            holder["pods"] = _by_what_they_want(holder["pods"])
    return events


def _by_what_they_want(entries: list[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in entries:
        names = entry.get("names") or [f"{entry['name']}-{n}" for n in range(entry["count"])]
        of_all = ("name", "names", "count", "min")
        wants = {key: value for key, value in entry.items() if key not in of_all}
        found.setdefault(json.dumps(wants), []).extend(names)
    return {wants: sorted(names) for wants, names in found.items()}
