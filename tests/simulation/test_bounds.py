"""How much is tried for one gang: few places and cells where it does not fit."""

import random
from collections.abc import Sequence

import pytest
from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell, VirtualCluster
from scheduler.domain.core.model import Deferred, Gang, Kind, Placed, Refused, Role

LEAF = PhysicalCell("v100")
SWITCH = PhysicalCell("switch", children=(LEAF, LEAF))
HALF = PhysicalCell("switch", children=(LEAF,))


def broken(count: int) -> list[PhysicalCell]:
    """Racks of two machines that lack a GPU each."""
    return [
        PhysicalCell(
            "rack",
            name=f"b{n}",
            children=tuple(
                PhysicalCell("node", name=f"b{2 * n + i}", children=(SWITCH, HALF))
                for i in range(2)
            ),
        )
        for n in range(count)
    ]


def test_cells_of_a_chain_without_quota_are_not_tried() -> None:
    old = [PhysicalCell("old-node", name=f"m{n}") for n in range(40)]
    scene = Scene(config([*racks(200), *old], x=owning(("old-node", 40))))
    (placed,) = scene.asks(gang("a", "x", 2, pods=40, cpu=1))
    assert isinstance(placed, Placed)


def test_more_pods_than_the_allowed_nodes_hold_are_refused_at_once() -> None:
    limits = {f"n{n}": NodeLimits(cpu=8) for n in range(400)}
    scene = Scene(config(racks(200), limits, x=owning(("rack", 1))))
    some = frozenset(("n0", "n7", "n50"))
    one = gang("a", "x", 2, pods=150, priority=-1, cpu=1, allowed_nodes=some)
    (refused,) = scene.asks(one)
    assert isinstance(refused, Refused)


def tight() -> tuple[VirtualCluster, Gang]:
    """Two kinds of pods, charged more than they use, that just don't fit together."""
    kinds = (Kind(1, cpu=20), Kind(2, cpu=17), Kind(1, cpu=11))
    roles = tuple(
        Role(kind, tuple(f"{n}-{pod}" for pod in range(40)), name=f"r{n}")
        for n, kind in enumerate(kinds)
    )
    quota = owning(("rack/node", 20), ("rack/node/switch", 80), ("rack/node/switch/v100", 90))
    return quota, Gang("a", "x", "user", 1, roles)


def test_hundreds_of_pods_that_do_not_fit_are_told_so_within_bounds() -> None:
    quota, one = tight()
    limits = {f"n{n}": NodeLimits(cpu=32) for n in range(400)}
    scene = Scene(config(racks(200), limits, x=quota))
    (decided,) = scene.asks(one)
    assert isinstance(decided, Refused | Deferred)


def of_two_types(k80s: int, v100s: int) -> ClusterConfig:
    """Machines with two GPUs each, all of them one virtual cluster's."""
    nodes = [PhysicalCell("k80-node", name=f"k{n}") for n in range(k80s)]
    nodes += [PhysicalCell("old-node", name=f"v{n}") for n in range(v100s)]
    return config(nodes, x=owning(("k80-node", k80s), ("old-node", v100s)))


def of_roles(
    pods: Sequence[int], priority: int = 0, types: tuple[str, ...] = ("k80", "v100")
) -> Gang:
    """So many pods of each role, on nodes of their own, K80s if that can be."""
    kind = Kind(2, gpu_types=types)
    roles = [
        Role(kind, tuple(f"{n}-{pod}" for pod in range(count)), name=f"r{n}")
        for n, count in enumerate(pods)
    ]
    return Gang("a", "x", "user", priority, tuple(roles))


def test_types_of_which_a_role_can_not_have_enough_use_up_no_choices() -> None:
    (placed,) = Scene(of_two_types(1, 8)).asks(of_roles((2, 1, 1, 1, 1, 1, 1)))
    assert isinstance(placed, Placed)


@pytest.mark.parametrize("roles", [13, 20])
@pytest.mark.parametrize("priority", [0, -1])
@pytest.mark.parametrize("types", [("k80", "v100"), ()])
def test_however_many_roles_of_which_few_can_have_the_first_type_have_a_place(
    roles: int, priority: int, types: tuple[str, ...]
) -> None:
    one = of_roles((1,) * roles, priority, types)
    (placed,) = Scene(of_two_types(2, roles)).asks(one)
    assert isinstance(placed, Placed)


NARROW = {
    "x": NodeLimits(cpu=8, resources={"r": 1, "s": 1}),
    "y": NodeLimits(cpu=8, resources={"r": 1, "s": 0}),
    "z": NodeLimits(cpu=8, resources={"r": 0, "s": 0}),
}
"""Nodes for three pods of which two find theirs taken where the first takes the first."""


def of_narrow(priority: int) -> Gang:
    """Three pods that fit on these in one way only."""
    kinds = (Kind(0, cpu=8), Kind(0, cpu=8, resources=(("r", 1),)))
    kinds += (Kind(0, cpu=8, resources=(("s", 1),)),)
    roles = tuple(Role(kind, (f"p{n}",), name=f"r{n}") for n, kind in enumerate(kinds))
    return Gang("a", "x", "user", priority, roles)


def on_narrow(nodes: dict[str, NodeLimits]) -> Scene:
    """These nodes without GPUs, beside one with two that is of no use."""
    cells = [PhysicalCell("old-node", name="m0")]
    scene = Scene(config(cells, {**nodes, "m0": NodeLimits(cpu=1)}, x=owning(("old-node", 1))))
    for node in nodes:
        scene.core.set_node_health(node, True)
    return scene


@pytest.mark.parametrize("priority", [0, -1])
def test_nobody_is_refused_where_nodes_without_gpus_have_too_many_looks(priority: int) -> None:
    more = {
        f"c{n:02}": NodeLimits(cpu=8, memory_mb=n, resources={"s": 0, "r": 0}) for n in range(40)
    }
    (waits,) = on_narrow({**more, "x": NARROW["x"]}).asks(of_narrow(priority))
    assert isinstance(waits, Deferred)


def test_hundreds_of_pods_have_steps_enough_where_each_binds_a_cell_for_each_gpu() -> None:
    scene = Scene(config(racks(300), x=owning(("rack/node/switch/v100", 2400))))
    (placed,) = scene.asks(gang("a", "x", 4, pods=600))
    assert isinstance(placed, Placed)


def test_kinds_that_are_more_than_the_quota_together_are_refused_at_once() -> None:
    scene = Scene(config(racks(200), x=owning(("rack/node/switch/v100", 200))))
    pairs = Role(Kind(2), tuple(f"a-{pod}" for pod in range(75)), name="a")
    singles = Role(Kind(1), tuple(f"b-{pod}" for pod in range(100)), name="b")
    (refused,) = scene.asks(Gang("a", "x", "user", 1, (pairs, singles)))
    assert isinstance(refused, Refused)


def test_all_choices_of_types_together_have_a_bound() -> None:
    """Ten roles of either type that just don't fit: none of their choices is easily out."""
    chance = random.Random(1)
    names = [f"n{n}" for n in range(16)] + [f"k{n}" for n in range(16)]
    limits = {n: NodeLimits(resources={"r": chance.randint(1, 3), "s": 2}) for n in names}
    cells = [*racks(8), *(PhysicalCell("k80-node", name=name) for name in names[16:])]
    quota = [("rack/node", 4), ("rack/node/switch", 8), ("rack/node/switch/v100", 16)]
    scene = Scene(config(cells, limits, x=owning(*quota, ("k80-node", 16))))
    for name in names:
        scene.core.set_node_health(name, True)
    kinds = [
        Kind(chance.randint(1, 2), resources=(("r", chance.randint(0, 2)), ("s", 1)))
        for _ in range(10)
    ]
    roles = tuple(
        Role(kind, tuple(f"{n}-{pod}" for pod in range(4)), name=f"r{n}")
        for n, kind in enumerate(kinds)
    )
    (decided,) = scene.asks(Gang("a", "x", "user", 1, roles))
    assert isinstance(decided, Deferred)
