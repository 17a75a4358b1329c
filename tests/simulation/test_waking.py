"""Who waits is tried again as soon as it could be placed: what is in nobody's quota helps all.

`HISTORIES` says how many random ones there are.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from core_door import CoreDoor
from random_clusters import Traits, a_cluster, a_gang
from runs import Event, Run
from scenes import Scene, code_of, config, gang, owning
from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
    Grown,
    Kind,
    Placed,
    Preempted,
    Refused,
    Reserved,
    Role,
)
from seeds import blocks

STEPS = 30

MANY_PORTS = 20_000
"""Two such pods fill most of a node that has no range of ports."""

TREES = (("v100", (0, 1)), ("k80", (2, 3)))

GPU_NODES = (PhysicalCell("node", name="n0"), PhysicalCell("node", name="n1"))
ONE_CPU_NODE = config(
    GPU_NODES,
    {"c0": NodeLimits(cpu=4), "n0": NodeLimits(cpu=2), "n1": NodeLimits(cpu=2)},
    x=owning(("node", 1)),
    y=owning(("node", 1)),
)


def mixed(name: str, vc: str, cpu: int, priority: int = 0) -> Gang:
    """One pod with a GPU, one without that wants so much CPU."""
    roles = (Role(Kind(1), ("gpu",), "gpu"), Role(Kind(0, cpu=cpu), ("cpu",), "cpu"))
    return Gang(name, vc, "user", priority, roles)


def placed(decisions: Sequence[Decision]) -> list[str]:
    """Who starts, or grows."""
    return [each.gang for each in decisions if isinstance(each, Placed | Grown)]


def test_a_gang_with_gpus_is_placed_when_others_leave_the_cpu_that_it_waits_for() -> None:
    scene = Scene(ONE_CPU_NODE)
    scene.places(gang("other", "y", 0, cpu=4))
    assert not placed(scene.asks(mixed("waits", "x", cpu=4)))
    scene.leave("other")
    assert placed(scene.cycle()) == ["waits"]


def test_so_it_is_with_what_a_gang_with_gpus_grows_by() -> None:
    scene = Scene(ONE_CPU_NODE)
    scene.places(gang("other", "y", 0, cpu=4))
    scene.places(gang("grows", "x", 1))
    scene.core.grow("grows", (Role(Kind(1), ("g",)), Role(Kind(0, cpu=4), ("c",))))
    assert not placed(scene.cycle())
    scene.leave("other")
    assert placed(scene.cycle()) == ["grows"]


def test_it_is_placed_though_an_opportunistic_gang_has_to_leave_beside() -> None:
    scene = Scene(ONE_CPU_NODE)
    scene.places(gang("other", "y", 0, cpu=2))
    scene.places(gang("guest", "y", 0, cpu=2, priority=-1))
    assert not placed(scene.asks(mixed("waits", "x", cpu=4)))
    scene.leave("other")
    assert [each.gang for each in scene.cycle() if isinstance(each, Preempted)] == ["guest"]


def test_a_gang_without_gpus_preempts_on_a_node_that_is_healthy_again() -> None:
    limits = {"c0": NodeLimits(cpu=4), "n0": NodeLimits(cpu=2)}
    scene = Scene(config(GPU_NODES[:1], limits, Policy(is_lazy=False), x=owning(("node", 1))))
    scene.places(gang("other", "x", 0, cpu=4, priority=2))
    scene.places(gang("low", "x", 3, cpu=1))
    scene.core.nodes.set_gpu_health("n0", 3, is_healthy=False)
    assert code_of(scene.asks(gang("waits", "x", 0, cpu=2, priority=1)), "waits") == "health"
    scene.core.nodes.set_gpu_health("n0", 3, is_healthy=True)
    assert [each.gang for each in scene.cycle() if isinstance(each, Preempted)] == ["low"]


def eight_cpus(*nodes: str) -> dict[str, NodeLimits]:
    """So many on each of these nodes, and on one without GPUs."""
    return {name: NodeLimits(cpu=8) for name in ("c0", *nodes)}


@pytest.mark.parametrize("is_keeping", [False, True])
def test_a_gang_without_gpus_is_placed_where_all_gpus_are_in_use(is_keeping: bool) -> None:
    policy, both = Policy(is_backfilling=is_keeping), owning(("node", 1))
    scene = Scene(config(GPU_NODES, eight_cpus("n0", "n1"), policy, x=both, y=both))
    scene.places(gang("full", "y", 0, cpu=8))
    scene.places(gang("trains", "x", 4, cpu=2))
    scene.places(gang("beside", "y", 4, cpu=2))
    scene.places(gang("other", "y", 0, pods=2, cpu=6))
    assert not placed(scene.asks(gang("waits", "x", 0, cpu=4)))
    scene.leave("other")
    assert placed(scene.cycle()) == ["waits"]


def test_it_is_placed_when_who_has_cells_reserved_starts_with_less_than_their_cpu() -> None:
    both = owning(("rack", 1))
    scene = Scene(config(nodes=eight_cpus("n0", "n1", "n2", "n3"), policy=Policy(), x=both, y=both))
    scene.places(gang("full", "y", 0, cpu=8))
    scene.places(gang("first", "x", 4, pods=2, cpu=8, expected_s=300.0))
    scene.places(gang("beside", "y", 4, pods=2, cpu=8))
    assert not placed(scene.asks(gang("waits", "x", 0, cpu=4)))
    decided = scene.asks(gang("next", "x", 4, pods=2, cpu=4))
    assert [each.gang for each in decided if isinstance(each, Reserved)] == ["next"]
    scene.leave("first")
    assert placed(scene.cycle()) == ["next", "waits"]


def test_it_takes_what_a_gang_is_to_leave_for_another() -> None:
    scene = Scene(ONE_CPU_NODE)
    scene.places(gang("bound", "x", 3))
    scene.places(mixed("low", "y", cpu=4))
    assert not placed(scene.asks(mixed("waits", "x", cpu=4)))
    decided = scene.asks(gang("high", "y", 4, priority=5))
    assert [each.gang for each in decided if isinstance(each, Preempted)] == ["low"]
    told = {each.gang: each.reason.code for each in decided if isinstance(each, Deferred)}
    assert told == {"high": "preempting", "waits": "preempting"}


def test_a_gang_is_placed_when_others_leave_the_ports_that_it_waits_for() -> None:
    """Though their virtual cluster keeps all cells that it has there."""
    scene = Scene(config(GPU_NODES[:1], x=owning(("node/switch", 1)), y=owning(("node/switch", 1))))
    scene.places(gang("many", "y", 1, ports=40_000))
    scene.places(gang("stays", "y", 1))
    assert not placed(scene.asks(gang("waits", "x", 1, pods=2, ports=5_000)))
    scene.leave("many")
    assert placed(scene.cycle()) == ["waits"]


def test_who_may_pass_is_tried_when_opportunistic_gangs_have_left_what_is_kept() -> None:
    scene = Scene(config(policy=Policy(), x=owning(("rack/node", 4)), y=owning()))
    scene.places(gang("half", "x", 4, pods=2, limit_s=1_000.0))
    scene.places(gang("guest", "y", 4, pods=2, priority=-1))
    assert not placed(scene.asks(gang("large", "x", 4, pods=4)))
    assert not placed(scene.asks(gang("small", "x", 4, limit_s=100.0)))
    scene.leave("guest")
    assert placed(scene.cycle()) == ["small"]


def test_who_may_preempt_when_nothing_is_reserved_any_more_is_tried() -> None:
    """The reservation had no idle cell, so none becomes free."""
    scene = Scene(config(GPU_NODES[:1], policy=Policy(), x=owning(("node", 1))))
    scene.places(gang("equal", "x", 2, priority=1, expected_s=1_000.0))
    scene.places(gang("low", "x", 2))
    scene.asks(gang("large", "x", 4, priority=1))
    assert code_of(scene.asks(gang("waits", "x", 2, priority=1)), "waits") == "reservation"
    scene.leave("large")
    decided = scene.cycle()
    assert [(e.gang, e.for_gang) for e in decided if isinstance(e, Preempted)] == [("low", "waits")]


def test_who_waits_for_reserved_cells_is_tried_when_their_gang_starts_elsewhere() -> None:
    scene = Scene(config(policy=Policy(), x=owning(("rack", 2))))
    for node in ("n2", "n3"):
        scene.core.cordon(node)
    scene.places(gang("soon", "x", 3, expected_s=100.0))
    scene.places(gang("late", "x", 4, expected_s=1_000.0))
    scene.asks(gang("large", "x", 4))
    waits = gang("waits", "x", 1, allowed_nodes=frozenset({"n0"}))
    assert code_of(scene.asks(waits), "waits") == "reservation"
    scene.leave("late")
    assert placed(scene.cycle()) == ["large", "waits"]


def test_who_may_not_be_where_a_cell_was_unbound_is_placed_elsewhere() -> None:
    both, policy = owning(("node", 1)), Policy(is_backfilling=False)
    scene = Scene(config(GPU_NODES, policy=policy, x=both, y=both))
    scene.places(gang("there", "x", 1, allowed_nodes=frozenset({"n0"})))
    assert not placed(scene.asks(gang("waits", "x", 1, allowed_nodes=frozenset({"n1"}))))
    scene.leave("there")
    assert placed(scene.cycle()) == ["waits"]


def test_who_may_take_the_cells_of_another_is_tried_where_cells_were_unbound() -> None:
    both = owning(("node", 1))
    policy = Policy(is_lazy=True, is_backfilling=False, min_run_s=1_000.0)
    scene = Scene(config(GPU_NODES, policy=policy, x=both, y=both))
    scene.places(gang("low", "x", 4))
    scene.places(gang("other", "y", 4))
    assert not placed(scene.asks(gang("waits", "x", 4, priority=5)))
    scene.leave("other")
    decided = scene.cycle()
    assert [each.gang for each in decided if isinstance(each, Downgraded)] == ["low"]
    assert placed(decided) == ["waits"]


def test_who_waits_for_the_end_of_a_protection_is_tried_though_something_else_became_free() -> None:
    policy = replace(Policy(), is_lazy=False, is_backfilling=False, min_run_s=10.0)
    scene = Scene(config(GPU_NODES[:1], {"c0": NodeLimits(cpu=4)}, policy, x=owning(("node", 1))))
    scene.core.cordon("c0")
    scene.places(gang("low", "x", 4))
    assert not placed(scene.asks(gang("waits", "x", 4, priority=1)))
    scene.core.uncordon("c0")
    decided = scene.cycle(after_s=20.0)
    assert [each.gang for each in decided if isinstance(each, Preempted)] == ["low"]


class InsistentDoor(CoreDoor):
    """The core; and after each cycle everybody is tried once more, which must change nothing."""

    def decide(self, now: float) -> Sequence[Decision]:
        decided = super().decide(now)
        self.core.settle(is_settled=False)
        self.core.settle(is_settled=True)
        again = [d for d in self.core.cycle(now) if not isinstance(d, Deferred | Refused)]
        assert not again, [type(each).__name__ for each in again]
        return decided


def with_commons(random: Random, made: ClusterConfig) -> ClusterConfig:
    """With nodes that have no GPUs, of two looks."""
    looks = (NodeLimits(cpu=8, memory_mb=2000), NodeLimits(cpu=4, ports=(20_000, 20_002)))
    commons = {f"c{number}": random.choice(looks) for number in range(random.choice((1, 2, 3)))}
    return replace(made, nodes={**made.nodes, **commons})


def a_mixed_gang(random: Random, run: Run, name: str, at: float) -> Gang:
    """Mostly with pods that want no GPU beside others; now and then with very many ports."""
    made = a_gang(random, run.state.hardware, name, at, without_gpus=0.15)
    roles = list(made.roles)
    if random.random() < 0.6:
        kind = Kind(
            0,
            cpu=random.choice((0, 2, 4, 8)),
            memory_mb=random.choice((0, 0, 1000)),
            ports=random.choice((0, 0, 2)),
        )
        pods = tuple(f"c-{number}" for number in range(random.choice((1, 1, 2))))
        roles.append(Role(kind, pods, "c"))
    if random.random() < 0.1:
        role = random.choice(roles)
        many = replace(role, kind=replace(role.kind, ports=MANY_PORTS), pods=role.pods[:2])
        roles[roles.index(role)] = many
    return replace(made, roles=tuple(roles))


class _Dice:
    """One event at a time."""

    def __init__(self, random: Random, run: Run) -> None:
        self.random, self.run = random, run
        self.count = 0

    def throw(self, at: float) -> Event | None:
        """What happens next; None: nothing."""
        random, state = self.random, self.run.state
        running = sorted(name for name, each in state.records.items() if not name.endswith("+"))
        kinds = ("request", "release", "release_pod", "grow", "node", "drain", "uncordon")
        kind = random.choices(kinds, (50, 25, 6, 6, 4, 3, 6))[0]
        if kind == "request":
            self.count += 1
            return ("request", a_mixed_gang(random, self.run, f"g{self.count}", at))
        if kind in ("node", "drain", "uncordon"):
            node = random.choice(state.hardware.machines)
            return ("node", node, node in state.bad_nodes) if kind == "node" else (kind, node)
        if not running:
            return None
        name = random.choice(running)
        record = state.records[name]
        if kind == "release":
            return ("release", name)
        if kind == "release_pod":
            return ("release_pod", name, random.choice(sorted(record.places)))
        role = random.choice(record.gang.roles)
        return ("grow", name, (replace(role, pods=(f"more-{at}",)),))


@pytest.mark.parametrize("block", blocks(10, deep=500, size=10))
def test_to_try_everybody_once_more_changes_nothing(block: range) -> None:
    for seed in block:
        random = Random(seed)
        made = a_cluster(random, Traits(is_irregular=False, has_two_trees=seed % 4 < 2))
        run = Run(InsistentDoor, with_commons(random, made), judges="")
        dice = _Dice(random, run)
        for number in range(STEPS):
            event = dice.throw(number * 10.0)
            if event is not None:
                run.apply(event)
            run.apply(("cycle", number * 10.0))
            assert not run.problems, f"seed {seed}, step {number}: {run.problems[0][:300]}"


@pytest.mark.parametrize("gpus", [1, 2])
def test_who_was_tried_in_vain_is_tried_again_when_another_has_made_room(gpus: int) -> None:
    """In the same cycle: who wants as much as it, or more, too."""
    both = owning(("node", 1))
    policy = Policy(order_by=("age",), is_lazy=True, is_backfilling=False)
    scene = Scene(config(GPU_NODES, policy=policy, x=both, y=both))
    scene.asks(gang("large", "x", 4, priority=4))
    first = gang("first", "x", 1, priority=3, submitted_at=1.0)
    higher = gang("higher", "x", 1, priority=5, submitted_at=2.0)
    later = gang("later", "x", gpus, priority=3, submitted_at=3.0)
    decided = scene.asks(first, higher, later)
    assert [each.gang for each in decided if isinstance(each, Downgraded)] == ["large"]
    assert sorted(placed(decided)) == ["first", "higher", "later"]


@pytest.mark.parametrize(
    ("much", "less"),
    [
        ({"cpu": 5}, {"cpu": 4}),
        ({"memory_mb": 50}, {"memory_mb": 40}),
        ({"ports": 5}, {"ports": 4}),
        ({"resources": (("rdma", 3),)}, {"resources": (("rdma", 2),)}),
        ({"resources": (("rdma", 3),)}, {}),
    ],
)
def test_who_wants_less_of_anything_is_tried_though_another_did_not_fit(
    much: dict[str, object], less: dict[str, object]
) -> None:
    limits = NodeLimits(cpu=4, memory_mb=40, ports=(20_000, 20_003), resources={"rdma": 2})
    nodes = {"n0": limits, "n1": NodeLimits(cpu=5, memory_mb=50, resources={"rdma": 3})}
    scene = Scene(config(GPU_NODES, nodes, x=owning(("node", 1)), y=owning(("node", 1))))
    scene.asks(gang("there", "y", 4, cpu=5, memory_mb=50, ports=5, resources=(("rdma", 3),)))
    decided = scene.asks(gang("first", "x", 1, **much), gang("later", "x", 1, **less))
    assert placed(decided) == ["later"]


def test_growth_that_has_cells_kept_is_tried_when_what_it_lacks_is_there() -> None:
    policy = Policy(order_by=("age",), is_backfilling=True, assumed_s=1_000.0)
    limits = {"n0": NodeLimits(cpu=8)}
    scene = Scene(config(GPU_NODES[:1], limits, policy, x=owning(("node", 1))))
    scene.places(Gang("first", "x", "user", 0, (Role(Kind(1), ("p0",), "a"),)))
    scene.places(gang("beside", "x", 1, submitted_at=0.5))
    scene.core.block("n0", amounts={"cpu": 8})
    scene.core.grow("first", (Role(Kind(2, cpu=2), ("p1",), "b"),))
    kept = [*scene.cycle(), *scene.asks(gang("later", "x", 4, submitted_at=10.0))]
    assert [each.gang for each in kept if isinstance(each, Reserved)] == ["first"]
    scene.core.block("n0")
    assert placed(scene.cycle()) == ["first"]
