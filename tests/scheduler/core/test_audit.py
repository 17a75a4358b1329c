"""The audit finds what differs from placements and names its gang. Cycles run meanwhile."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from oracle.hardware import Hardware
from random_clusters import a_cluster, a_gang
from scenes import config, gang, owning
from scheduler.domain.core.config import USUAL_ORDER, Policy
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.interface import Drift
from scheduler.domain.core.model import Gang, Kind, Role
from scheduler.domain.core.nodes import Slot, Workload

SEEDS, STEPS = 12, 25


def a_core() -> Core:
    """Gangs with cells, opportunistic, elastic, and one with a reservation."""
    policy = Policy(is_backfilling=True, assumed_s=1_000.0)
    core = Core(config(policy=policy, x=owning(("rack", 1)), y=owning(("rack/node", 1))))
    for node in ("n0", "n1", "n2", "n3"):
        core.nodes.set_node_health(node, True)
    roles = (Role(Kind(2), ("p0", "p1"), "p", 1),)
    gangs = (
        (gang("plain", "x", 1), gang("guest", "y", 2, priority=-1)),
        (Gang("elastic", "x", "user", 0, roles), gang("other", "y", 4)),
        (gang("large", "x", 4, pods=2),),
    )
    for now, some in enumerate(gangs):
        for each in some:
            core.request(each)
        core.cycle(float(now))
    assert [each.gang for each in core.rows.reservations()] == ["large"]
    assert core.gangs["elastic"].children[0].workload.places
    return core


def audited(core: Core, between: Callable[[], None] = lambda: None) -> list[Drift]:
    """What an audit finds, between whose steps something happens."""
    steps = core.audit()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Drift] = end.value
            return found
        between()


def plain(core: Core) -> Workload:
    return core.gangs["plain"].workload


def slot_of(core: Core) -> Slot:
    return plain(core).places[0].slot


def another_slot(core: Core) -> Slot:
    return next(slot for slot in core.state.pools[0].slots if slot is not slot_of(core))


def not_on_its_node(core: Core) -> None:
    del slot_of(core).pods[plain(core)]


def over_and_still_there(core: Core) -> None:
    workload = core._gangs.records.all.pop("plain").workload
    assert workload in workload.places[0].slot.pods


def uses_more(core: Core) -> None:
    slot_of(core).pods[plain(core)] = (0b11, 0b11)


def charged_on_another_node(core: Core) -> None:
    another_slot(core).pods[plain(core)] = (0, 0b1)


def another_priority(core: Core) -> None:
    plain(core).priority = 7


def without_cells(core: Core) -> None:
    plain(core).owner = None


def charged_once_more(core: Core) -> None:
    core.state.charged["vc x", "v100"][0] += 1


def where_another_is(core: Core) -> None:
    workload, other = plain(core), core.gangs["other"].workload
    workload.places = tuple(
        place._replace(slot=other.places[0].slot, gpus=0b1) for place in workload.places
    )


def two_pods_with_one_port(core: Core) -> None:
    (place,) = plain(core).places
    plain(core).places = (
        place._replace(ports=0b1),
        place._replace(pod="p1", gpus=0, charge=0, ports=0b1),
    )


@pytest.mark.parametrize(
    "corrupt",
    [
        not_on_its_node,
        over_and_still_there,
        uses_more,
        charged_on_another_node,
        another_priority,
        without_cells,
        charged_once_more,
        where_another_is,
        two_pods_with_one_port,
    ],
)
def test_the_gang_whose_placement_differs_is_named(corrupt: Callable[[Core], None]) -> None:
    core = a_core()
    assert audited(core) == []
    corrupt(core)
    assert "plain" in {each.gang for each in audited(core)}


def test_a_pod_that_a_gang_has_grown_by_is_its_own() -> None:
    core = a_core()
    workload = core.gangs["elastic"].children[0].workload
    del workload.places[0].slot.pods[workload]
    assert {each.gang for each in audited(core)} == {"elastic", ""}


def test_cells_that_are_reserved_for_a_gang_are_its_own() -> None:
    core = a_core()
    reservation = core.gangs["large"].reservation
    assert reservation is not None
    reservation.hold.priority = 5
    assert {each.gang for each in audited(core)} >= {"large"}


def test_of_a_wrong_sum_the_gangs_that_are_charged_the_difference_are_named() -> None:
    core = a_core()
    core.state.charged["vc x", "v100"][0] += 1
    assert audited(core) == [
        Drift(
            "plain",
            "quota",
            1,
            "quota of vc x, v100, priority 0: accounting has 7, placements have 6",
        )
    ]
    core.state.charged["vc x", "v100"][0] += 99
    assert {each.size for each in audited(core)} == {100}
    assert {each.gang for each in audited(core)} == {"plain", "elastic", "large"}


def spare_cells(core: Core) -> None:
    core.state.buddies[core.state.pools[0].chain.name].counts[1] += 1  # type: ignore[union-attr]


def users_of_a_cell(core: Core) -> None:
    slot_of(core).bindings[0][1].users += 1


def used_gpus(core: Core) -> None:
    slot_of(core).used = 0


def open_leaves(core: Core) -> None:
    slot_of(core).open = 0b1


def bound_leaves(core: Core) -> None:
    slot_of(core).bound = {**slot_of(core).bound, "vc z": 0b1}


def amounts(core: Core) -> None:
    node = slot_of(core).node
    node.soon = tuple(each - 1 for each in node.soon)


def preempted_gangs(core: Core) -> None:
    core.state.leaving += 1


def a_view(core: Core) -> None:
    view = next(iter(core.state.views()))
    view.flush()
    view._keys[0] += 1


def a_view_of_all_racks(core: Core) -> None:
    view = next(iter(core.state.views()))
    view.flush()
    view.by_whole[0] ^= 1


@pytest.mark.parametrize(
    ("corrupt", "book"),
    [
        (spare_cells, "cells"),
        (users_of_a_cell, "cells"),
        (used_gpus, "gpus"),
        (open_leaves, "cells"),
        (bound_leaves, "cells"),
        (amounts, "amounts"),
        (preempted_gangs, "quota"),
        (a_view, "index"),
        (a_view_of_all_racks, "index"),
    ],
)
def test_what_is_no_gang_s_names_nobody(corrupt: Callable[[Core], None], book: str) -> None:
    core = a_core()
    corrupt(core)
    found = audited(core)
    assert {each.gang for each in found} == {""}
    assert book in {each.book for each in found}
    assert all(each.size > 0 and each.text for each in found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_happens_between_steps_is_no_drift(seed: int) -> None:
    chance = random.Random(seed)
    cluster = a_cluster(chance)
    policy = replace(cluster.policy, is_backfilling=True, assumed_s=20.0, order_by=USUAL_ORDER)
    core, hardware, now = Core(replace(cluster, policy=policy)), Hardware(cluster), 0.0

    def happen() -> None:
        nonlocal now
        now += 1.0
        kind, names = chance.random(), sorted(core.gangs)
        if kind < 0.5:
            core.request(a_gang(chance, hardware, f"g{now:.0f}", now, 0.15))
        elif kind < 0.8 and names:
            core.release(chance.choice(names))
        else:
            core.nodes.set_node_health(chance.choice(hardware.machines), kind < 0.95)
        core.cycle(now)

    for _ in range(STEPS):
        happen()
    assert audited(core, happen) == []
    assert now > STEPS + 2 * len(core.state.nodes)
    assert audited(core) == []


def test_no_step_is_as_long_as_the_audit() -> None:
    """A step has one node, one gang, or one rack of a view."""
    core = a_core()
    views = [view for view in core.state.views() for _ in view.pool.racks]
    least = len(core.state.nodes) + len([*core.workloads()]) + len(views)
    assert sum(1 for _ in core.audit()) >= least


def test_a_view_that_is_dropped_meanwhile_is_no_drift() -> None:
    """It is not kept up to date any more."""
    core, step = a_core(), 0
    state = core.state
    state.claim(state.pools[0], "vc x", 0, may_bind=True).flush()
    drop_at = sum(1 for _ in core.audit()) - len(state.pools[0].racks)

    def drop() -> None:
        nonlocal step
        step += 1
        if step == drop_at - 1:
            state._drop_claim(*list(state._claims)[-1])
            core.release("plain")

    assert audited(core, drop) == []
    assert step >= drop_at - 1
