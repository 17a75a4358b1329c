"""Which moves the core advises. They are true, and asking changes nothing."""

import random
from copy import deepcopy
from dataclasses import replace

import pytest
from digests import digest
from scenes import RACKS, config, gang, owning
from scheduler.domain.core.advise import Spot, spots_of
from scheduler.domain.core.config import Policy
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.interface import Advice
from scheduler.domain.core.model import Gang, Kind, Placed, Role
from scheduler.domain.core.nodes import Phase
from test_core_answers import POLICIES, a_history, waiting
from test_core_reasons import KEEPING, Scene, a_scene


def advice(core: Core, cell: str | None = None, cells: int = 1) -> Advice:
    """What is advised in any chain."""
    found = core.questions.advise(None, cell, cells)
    assert found is not None
    return found


def placed(scene: Scene, **nodes: tuple[str, int]) -> None:
    """Gangs of one pod with so many GPUs on these nodes; they may go anywhere from then on."""
    for name, (node, gpus) in nodes.items():
        scene.asks(gang(name, "x", gpus, allowed_nodes=frozenset({node})))
    for name in nodes:
        workload = scene.core.gangs[name].workload
        workload.gang = replace(workload.gang, allowed_nodes=None)


def moved(found: Advice) -> dict[str, set[str]]:
    """Where each gang would go to."""
    return {each.gang: {place.node for place in each.after.values()} for each in found.moves}


def test_the_gangs_with_the_fewest_gpus_move() -> None:
    scene = a_scene()
    placed(scene, a=("n0", 2), b=("n1", 1), c=("n2", 2), d=("n3", 2))
    found = advice(scene.core)
    assert (found.cells, found.gpus, found.is_least) == (("r0",), 3, True)
    assert moved(found).keys() == {"a", "b"}
    assert set.union(*moved(found).values()) <= {"n2", "n3"}


def test_of_as_many_gpus_those_move_that_lose_the_least_work() -> None:
    scene = a_scene()
    placed(scene, young=("n0", 2), old=("n2", 2))
    scene.now = 100.0
    scene.asks()
    scene.core.checkpointed("old", 91.0)
    (found,) = advice(scene.core).moves
    assert (found.gang, found.lost_gpu_s) == ("old", 20.0)


@pytest.mark.parametrize("number", [1, 2])
def test_a_cell_that_is_free_already_needs_no_move(number: int) -> None:
    found = advice(a_scene().core, "rack", number)
    assert found.cells == ("r0", "r1")[:number]
    assert (found.already, found.moves, found.reason) == (number, (), None)


def test_gangs_that_fit_nowhere_else_are_the_reason() -> None:
    scene = a_scene()
    scene.asks(*(gang(f"g{number}", "x", 3) for number in range(4)))
    reason = advice(scene.core).reason
    assert reason is not None
    assert (reason.code, dict(reason.numbers)) == ("room", {"cells": 2, "free": 4, "room": 2})


def test_one_cell_and_one_free_gpu_are_told_in_the_singular() -> None:
    scene = Scene(config(cells=(RACKS[0],), x=owning(("rack", 1))))
    scene.asks(gang("most", "x", 4), gang("rest", "x", 3))
    reason = advice(scene.core, "rack").reason
    assert reason is not None
    assert reason.text.startswith(
        "The only complete cell rack can't be freed by moving the gangs there:"
    )
    assert reason.text.endswith(" 1 GPU of type v100 is free in all.")


def test_bad_nodes_pins_and_reserved_cells_are_in_the_way() -> None:
    pinned = (RACKS[0], replace(RACKS[1], pin="mine"))
    scene = Scene(config(cells=pinned, x=owning(("rack", 1), pins=("mine",))))
    scene.core.nodes.set_gpu_health("n1", 2, False)
    reason = advice(scene.core).reason
    assert reason is not None
    assert (reason.numbers["unwell"], reason.numbers["pinned"]) == (1, 1)
    scene = a_scene(KEEPING)
    scene.asks(gang("half", "x", 3), gang("rest", "x", 3))
    scene.asks(gang("large", "x", 4, pods=4))
    reason = advice(scene.core, "node").reason
    assert reason is not None
    assert (reason.code, reason.numbers["kept"]) == ("cells", 4)
    scene = a_scene()
    scene.asks(gang("failed", "x", 4, pods=4))
    scene.core.requeue("failed", 60.0)
    reason = advice(scene.core, "node").reason
    assert reason is not None
    assert reason.numbers["kept"] == 4


def test_several_cells_and_cells_inside_nodes_are_freed() -> None:
    scene = a_scene()
    placed(scene, **{f"g{number}": (f"n{number}", 1) for number in range(4)})
    found = advice(scene.core, "node", 3)
    assert len(found.cells) == len(found.moves) == 3
    assert advice(scene.core, "node", 4).reason is not None
    scene = Scene(config(x=owning(("rack/node/switch", 8))))
    placed(scene, **{f"g{number}": (f"n{number}", 1) for number in range(4)})
    assert len(advice(scene.core, "switch", 6).moves) == 2


def test_surplus_pods_may_have_no_place_then() -> None:
    scene = a_scene(Policy(order_by=("priority", "age"), is_backfilling=False))
    scene.core.nodes.set_node_health("n3", False)
    scene.asks(Gang("e", "x", "user", 0, (Role(Kind(4), ("p0", "p1"), "p", 1),)))
    scene.asks()
    (found,) = advice(scene.core, "node", 2).moves
    assert (found.is_surplus, found.gpus, found.lost_gpu_s, found.after) == (True, 4, 0.0, {})


def is_free(core: Core, spot: Spot) -> bool:
    """No pod is there, nothing is charged, and no cell around it is bound."""
    leaves = list(spot.leaves(core.state))
    busy = any(mask & (slot.used | slot.held | slot.charged) for slot, mask in leaves)
    return not busy and spot.is_free(core.state)


def made_so(core: Core, found: Advice, now: float) -> str | None:
    """Nobody waits, the nodes are cordoned, and the gangs begin anew; what is wrong then."""
    for name in waiting(core):
        core.release(name)
    chain = core.forest.chains[found.chain]
    spots = {s.address: s for s in spots_of(chain, chain.types.index(found.cell_type))}
    for cell in found.cells:
        for slot, _ in spots[cell].leaves(core.state):
            core.nodes.cordon(slot.node.name)
    gangs = [core.gangs[move.gang].workload.gang for move in found.moves]
    for one in gangs:
        core.release(one.id)
    for one in gangs:
        core.request(one)
    running = {each.gang for each in core.cycle(now) if isinstance(each, Placed)}
    for one in gangs:
        if one.id not in running:
            return f"{one.id} waits"
    taken = [cell for cell in found.cells if not is_free(core, spots[cell])]
    return f"{taken} are not free" if taken else None


@pytest.mark.parametrize("policy", POLICIES)
def test_advice_is_true_and_changes_nothing(policy: dict[str, object]) -> None:
    wrong, count = [], 0
    for seed in range(4):
        chance = random.Random(seed)
        for core, now in a_history(seed, policy):
            if chance.random() > 0.4:
                continue
            chain = chance.choice(sorted(core.state.forest.chains))
            of = core.state.forest.chains[chain]
            cell = of.types[chance.randrange(of.node_level, of.top + 1)]
            before = digest(core)
            found = core.questions.advise(chain, cell, chance.choice((1, 1, 2)))
            assert digest(core) == before, (seed, now, cell)
            assert found is not None
            if found.moves:
                count += 1
                for move in found.moves:
                    assert core.gangs[move.gang].workload.phase is Phase.RUNNING
                problem = made_so(*deepcopy((core, found)), now)
                if problem is not None:
                    wrong.append(f"seed {seed}, {now:.0f}: {cell}: {problem}")
    print(f"{len(wrong)} of {count} were wrong", *wrong, sep="\n")
    assert not wrong
    assert count
