"""More gangs without GPUs than machines have CPU: those for which no cells are left are placed as
opportunistic ones, and no gang of their own virtual cluster preempts them but one of a higher
priority. Nor do they keep one for which cells are kept from its start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from core_door import AGE_FIRST, POLICIES, CoreDoor
from judging import gang_of, preempted_for_no_higher
from scenes import Scene, config, gang, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.model import (
    Decision,
    Downgraded,
    Gang,
    GangClass,
    Placed,
    Preempted,
    Reserved,
)
from scheduler_audit import audited
from seeds import how_many

USUAL = Policy(assumed_s=100.0)
SEEDS = how_many(2, deep=300)


def machines(count: int, cpu: int, policy: Policy = USUAL) -> Scene:
    """So many with four GPUs and so much CPU; all of them are x's but one, if there are several."""
    names = [f"m{number}" for number in range(count)]
    cells = [PhysicalCell("node", name=name) for name in names]
    limits = {name: NodeLimits(cpu=cpu) for name in names}
    owned = {"x": owning(("node", max(1, count - 1))), "y": owning(("node", int(count > 1)))}
    scene = Scene(config(cells, limits, policy, **owned))
    for name in names:
        scene.core.set_node_health(name, True)
    return scene


def a_job(name: str, user: str = "u", **more: object) -> Gang:
    """One that wants one CPU."""
    return replace(gang(name, "x", 0, **{"cpu": 1, **more}), user=user)


@dataclass
class World:
    """A core whose gangs end by themselves; those that are preempted are gone at once, and asked
    for anew.
    """

    scene: Scene
    random: Random
    runs_s: Sequence[float] = (1.0, 2.0, 3.0, 5.0, 8.0)

    def __post_init__(self) -> None:
        self.ends: dict[str, float] = {}
        self.started: set[str] = set()
        self.preempted: list[Preempted] = []

    def cycle(self, *asks: Gang) -> list[Decision]:
        """One more second."""
        core: CoreDoor = self.scene.core
        for name in [name for name, at in self.ends.items() if at <= self.scene.now]:
            del self.ends[name]
            wish = gang_of(core.core, name)
            is_anew = any(each.gang == name for each in core.leaving())
            core.release(name)
            if is_anew:
                core.request(wish)
        decided = self.scene.asks(*asks)
        wrong = [*preempted_for_no_higher(core.core, decided), *map(str, audited(core.core))]
        assert not wrong, wrong
        for each in decided:
            if isinstance(each, Placed):
                self.started.add(each.gang)
                self.ends[each.gang] = self.scene.now + self.random.choice(self.runs_s)
            elif isinstance(each, Preempted):
                self.preempted.append(each)
                self.ends[each.gang] = self.scene.now
        return decided


@pytest.mark.parametrize("cpu", [2, 4, 6, 16])
@pytest.mark.parametrize("at_once", [10, 150])
def test_of_a_burst_of_equal_jobs_none_is_preempted_for_another(cpu: int, at_once: int) -> None:
    """They are several users', of whom the fair share is another after each start."""
    world = World(machines(1, cpu), Random(cpu))
    jobs = [a_job(f"j{n:03}", "uvw"[n % 3], submitted_at=float(n)) for n in range(150)]
    for first in range(0, 150, at_once):
        world.cycle(*jobs[first : first + at_once])
    for _ in range(1_000):
        if len(world.started) == 150 and not world.ends:
            break
        world.cycle()
    assert len(world.started) == 150
    assert world.preempted == []


def test_a_gang_of_a_higher_priority_and_one_of_another_virtual_cluster_preempt_such_a_job() -> (
    None
):
    scene = machines(2, 4)
    for number in range(4):  # each is charged a GPU of the one machine that x has
        scene.places(a_job(f"own{number}"))
    for number in range(4):
        scene.places(a_job(f"more{number}"))
    states = [scene.core.gang(name) for name in scene.core.gang_ids() if "more" in name]
    classes = {state.gang_class for state in states}
    assert classes == {GangClass.OPPORTUNISTIC}
    assert [e for e in scene.asks(a_job("equal")) if isinstance(e, Preempted)] == []
    (victim,) = [e for e in scene.asks(a_job("high", priority=1)) if isinstance(e, Preempted)]
    assert victim.gang == "own3"  # the youngest with cells
    asks = replace(a_job("other"), virtual_cluster="y")
    (victim,) = [e for e in scene.asks(asks) if isinstance(e, Preempted)]
    assert victim.gang == "more3"


@pytest.mark.parametrize(("priority", "victims"), [(0, []), (1, []), (2, ["low"])])
def test_a_downgraded_gang_is_preempted_for_a_higher_priority_alone_of_its_own(
    priority: int, victims: list[str]
) -> None:
    """Whom it has lost its cells to is gone; another wants the machine on which it runs."""
    scene = machines(3, 4, replace(USUAL, is_lazy=True))
    only = [{"allowed_nodes": frozenset({f"m{number}"})} for number in range(3)]
    scene.places(gang("low", "x", 4, priority=1, **only[0]))
    scene.places(gang("rest", "x", 4, priority=3, **only[1]))
    assert Downgraded("low", "high") in scene.asks(gang("high", "x", 4, priority=2, **only[2]))
    scene.leave("high")
    decided = scene.asks(gang("late", "x", 4, priority=priority, **only[0]))
    assert [each.gang for each in decided if isinstance(each, Preempted)] == victims


@pytest.mark.parametrize(
    "policy", [*POLICIES, AGE_FIRST], ids=["plain", "backfill", "usual", "strict", "age"]
)
def test_no_gang_is_preempted_for_one_of_equal_or_lower_priority_of_its_virtual_cluster(
    policy: dict[str, object],
) -> None:
    """In random histories: but for who stays on kept cells for longer than it was to."""
    preempted = 0
    for seed in range(SEEDS):
        random = Random(seed)
        some: dict[str, object] = {"is_lazy": random.random() < 0.5, "grace_s": 0.0}
        made = replace(Policy(**(some | policy)), min_run_s=random.choice((0.0, 5.0)))  # type: ignore[arg-type]
        world = World(machines(3, random.choice((4, 6, 16)), made), random)
        wishes = some_wishes(random)
        try:
            for _ in range(80):
                world.cycle(*[next(wishes) for _ in range(random.choice((0, 1, 4)))])
                if random.random() < 0.3:  # what nobody known holds
                    amounts = {"cpu": random.choice((0, 1, 2))}
                    world.scene.core.block(f"m{random.randrange(3)}", amounts=amounts)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        preempted += len(world.preempted)
    assert preempted > SEEDS


def some_wishes(random: Random) -> Iterator[Gang]:
    """Mostly without GPUs."""
    for number in range(1_000):
        gpus = random.choice((0, 0, 0, 1, 2, 4))
        made = gang(
            f"g{number:03}",
            random.choice("xxy"),
            gpus,
            pods=random.choice((1, 1, 2)),
            cpu=random.choice((1, 1, 2, 4)),
            priority=random.choice((-1, 0, 0, 1, 2)),
            submitted_at=float(number),
            expected_s=random.choice((None, 2.0, 5.0)),
            limit_s=random.choice((None, None, 10.0)),
        )
        yield replace(made, user=random.choice("uvw"))


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_a_gang_for_which_cells_are_kept_starts_however_many_such_jobs_come(gpus: int) -> None:
    """It wants more CPU than one of them gives back, and leaves some to others until then."""
    kept = 0
    for seed in range(3 * SEEDS):
        world = World(machines(1, 16), Random(seed), runs_s=(5.0, 9.0, 20.0))
        jobs = (a_job(f"j{n:04}", "uvw"[n % 3], submitted_at=float(n)) for n in range(10_000))
        world.cycle(*(next(jobs) for _ in range(40)))
        large = a_job("large", "l", cpu=8, submitted_at=41.0) if not gpus else None
        large = large or replace(
            gang("large", "x", gpus, cpu=4 * gpus, submitted_at=41.0), user="l"
        )
        for _ in range(150):
            decided = world.cycle(*(next(jobs) for _ in range(4)), *([large] if large else []))
            large = None
            kept += sum(isinstance(e, Reserved) and e.gang == "large" for e in decided)
            if "large" in world.started:
                break
        assert "large" in world.started, seed
    assert kept > 0


def test_who_comes_after_takes_no_cpu_that_goes_with_kept_cells() -> None:
    """Of 16 CPUs four go with each GPU, of which two are idle, and six are used."""
    scene = machines(1, 16)
    scene.places(gang("runs", "x", 2, cpu=4, expected_s=50.0))
    scene.places(a_job("job", cpu=2, allowed_nodes=frozenset({"m0"}), priority=-1))
    decided = scene.asks(gang("large", "x", 4, cpu=8))
    (kept,) = [each for each in decided if isinstance(each, Reserved)]
    assert sum(len(gpus) for _, gpus in kept.cells) == 4
    assert [e.gang for e in scene.asks(a_job("three", cpu=3)) if isinstance(e, Placed)] == []
    assert [e.gang for e in scene.asks(a_job("two", cpu=2)) if isinstance(e, Placed)] == ["two"]
    scene.leave("large")
    assert [e.gang for e in scene.cycle() if isinstance(e, Placed)] == ["three"]


def test_cpu_of_a_charged_cell_among_kept_ones_counts_once() -> None:
    """Of 16 CPUs four go with each GPU. Six are used, and four go with the GPU that is idle."""
    scene = machines(1, 16)
    scene.places(gang("runs", "x", 2, cpu=2, expected_s=50.0))
    scene.places(a_job("job", cpu=4, expected_s=50.0))
    decided = scene.asks(gang("large", "x", 4))
    (kept,) = [each for each in decided if isinstance(each, Reserved)]
    assert sum(len(gpus) for _, gpus in kept.cells) == 4
    assert [e.gang for e in scene.asks(a_job("six", cpu=6)) if isinstance(e, Placed)] == ["six"]
    assert [e.gang for e in scene.asks(a_job("one", cpu=1)) if isinstance(e, Placed)] == []
