"""The places of the core are those of another program that is written from docs/scheduling.md."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from core_door import CoreDoor
from scenes import Scene, config, gang, nodes_of, owning
from scheduler.domain.core.config import CellType, ClusterConfig, PhysicalCell
from scheduler.domain.core.model import Grown, Kind, Placed, PodPlace, Restored, Role
from written_rules import NODES, RACKS, WIDTHS, Places, Written, nodes_in

SEEDS, IN_ONE_TEST = 240, 40

TYPES = {
    "pair": CellType("gpu", 2),
    "quad": CellType("pair", 2),
    "node": CellType("quad", 2, is_node=True),
    "rack": CellType("node", NODES),
}
TREES = tuple(
    PhysicalCell("rack", f"r{rack}", nodes=tuple(f"n{number}" for number in nodes_in(rack)))
    for rack in range(RACKS)
)


class Beside:
    """A core, and the other program beside it, in a random state. ``has_guests``: opportunistic
    gangs have parts of nodes too.
    """

    def __init__(self, random: Random, *, has_guests: bool) -> None:
        self.random = random
        self.written = Written(random.choice((3, 5, 8)))
        owned = {"x": owning(("rack/node", self.written.quota))}
        self.core = CoreDoor(ClusterConfig(TYPES, TREES, {}, owned))
        for number in range(RACKS * NODES):
            self.core.set_node_health(f"n{number}", True)
        for name in range(random.randint(2, 50)):
            self._begin(f"g{name}", random.choice((-1, 0, 0)) if has_guests else 0)

    def _begin(self, name: str, priority: int) -> None:
        """A gang of one pod runs somewhere, if there is room for it."""
        number = self.random.randrange(RACKS * NODES)
        free = self.written.free[number]
        if not free or (priority == 0 and not self.written.may_have(number)):
            return
        count = min(len(free), self.random.choice((1, 1, 2, 3, 6)))
        gpus = tuple(sorted(self.random.sample(sorted(free), count)))
        one = gang(name, "x", count, priority=priority)
        place = PodPlace("p0", f"n{number}", gpus, ())
        self.core.restore(Restored(one, (place,), started_at=0.0), 0.0)
        self.written.take(number, gpus, is_guest=priority < 0)

    def differs(self, pods: int, count: int) -> str:
        """What is not as it should be with a gang that asks now."""
        expected = self.written.place(pods, count)
        self.core.request(gang("new", "x", count, pods=pods))
        found: Places = []
        for placed in self.core.decide(1.0):
            if isinstance(placed, Placed):
                found = [(int(each.node[1:]), list(each.gpus)) for each in placed.pods]
        return "" if found == expected else f"{pods} of {count}: {found}, expected {expected}"


def wrong(seeds: Sequence[int], kinds: Sequence[tuple[int, int]], *, has_guests: bool) -> list[str]:
    """All that is not as it should be. ``kinds``: how many pods, and their GPUs."""
    found = []
    for seed in seeds:
        random = Random(seed)
        beside = Beside(random, has_guests=has_guests)
        if differs := beside.differs(*random.choice(kinds)):
            found.append(f"{seed}: {differs}")
    return found


@pytest.mark.parametrize("first", range(0, SEEDS, IN_ONE_TEST))
def test_one_pod_goes_where_the_rules_say(first: int) -> None:
    kinds = [(1, count) for count in (1, 1, 2, 3, 4, 5, 7)]
    assert wrong(range(first, first + IN_ONE_TEST), kinds, has_guests=True) == []


@pytest.mark.parametrize("first", range(0, SEEDS, IN_ONE_TEST))
def test_equal_pods_go_where_the_rules_say(first: int) -> None:
    kinds = [(pods, count) for pods in (2, 3, 4, 6) for count in (1, 2, 3, 4, WIDTHS[0])]
    assert wrong(range(first, first + IN_ONE_TEST), kinds, has_guests=False) == []


def test_most_random_states_have_places() -> None:
    """So the rules are tried."""
    states = [Beside(Random(seed), has_guests=False).written for seed in range(IN_ONE_TEST)]
    assert sum(bool(state.place(2, 2)) for state in states) > IN_ONE_TEST / 2


@pytest.mark.parametrize("is_growth", [False, True])
def test_a_cell_is_bound_in_the_groups_rack(is_growth: bool) -> None:
    """Though another rack has fewer free nodes. What a gang grows by likewise."""
    whole = config(x=owning(("rack/node", 6)))
    types = {**whole.cell_types, "rack": CellType("node", 3)}
    trees = (
        PhysicalCell("rack", name="r0", nodes=("n0", "n1", "n2")),
        PhysicalCell("rack", name="r1", nodes=("n3", "m0", "m1")),
    )
    scene = Scene(replace(whole, cell_types=types, physical_cells=trees))
    for name, node in (("first", "n0"), ("other", "n3"), ("another", "m0")):
        one = gang(name, "x", 4, **({"job": "j", "group": "g"} if name == "first" else {}))
        place = PodPlace("p0", node, (0, 1, 2, 3), ())
        scene.core.restore(Restored(one, (place,), started_at=0.0), 0.0)
    if is_growth:
        scene.core.grow("first", (Role(Kind(4), ("more",)),))
        (grown,) = scene.cycle()
        assert isinstance(grown, Grown)
        assert nodes_of(grown.pods) == {"n1"}
    else:
        assert nodes_of(scene.places(gang("second", "x", 4, job="j", group="g"))) == {"n1"}


def test_a_rack_of_other_gpus_is_not_near() -> None:
    """Racks of each type are numbered apart: the first ones have nothing to do with each other."""
    whole = config(x=owning(("rack/node", 4), ("k80-rack/k80-node", 2)))
    types = {**whole.cell_types, "k80-rack": CellType("k80-node", 2)}
    trees = (*whole.physical_cells, PhysicalCell("k80-rack", name="k0", nodes=("m0", "m1")))
    scene = Scene(replace(whole, cell_types=types, physical_cells=trees))
    group = {"job": "j", "group": "g"}
    for name, node, gpus in (("of-group", "m0", 2), ("broken", "n0", 2), ("tight", "n2", 1)):
        one = gang(name, "x", gpus, **(group if name == "of-group" else {}))
        place = PodPlace("p0", node, tuple(range(gpus)), ())
        scene.core.restore(Restored(one, (place,), started_at=0.0), 0.0)
    (place,) = scene.places(gang("second", "x", 1, gpu_types=("v100",), **group))
    assert (place.node, place.gpus) == ("n2", (1,))
