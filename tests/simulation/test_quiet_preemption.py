"""Who may not be made to leave: docs/scheduling.md, "Who is protected"."""

from dataclasses import replace

import pytest
from scenes import FREE, Scene, code_of, config, gang, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
    Kind,
    Placed,
    Preempted,
    Reserved,
    Role,
)


def a_scene(**policy: object) -> Scene:
    """Four machines of four GPUs, of which x owns all and y none."""
    return Scene(config(policy=Policy(**policy), x=owning(("rack/node", 4))))  # type: ignore[arg-type]


def shared(**policy: object) -> Scene:
    """The same machines, of which x owns half, and y the other half."""
    half = owning(("rack/node", 2))
    return Scene(config(policy=Policy(**policy), x=half, y=half))  # type: ignore[arg-type]


def a_gang(name: str, machines: int = 1, **more: object) -> Gang:
    """One that takes whole machines."""
    return gang(name, "x", 4, pods=machines, **more)


def victims(decisions: list[Decision]) -> list[str]:
    """Who has to leave."""
    return [each.gang for each in decisions if isinstance(each, Preempted)]


def reason(decisions: list[Decision], name: str) -> dict[str, object]:
    """The numbers with which a gang is told to wait."""
    (told,) = [each for each in decisions if isinstance(each, Deferred) and each.gang == name]
    return dict(told.reason.numbers)


def full(scene: Scene, **more: object) -> Scene:
    """Low gangs have the machines, one each, all since the same time."""
    decided = scene.asks(*(a_gang(name, **more) for name in "abcd"))
    assert [type(each) for each in decided] == [Placed] * 4
    return scene


def leave(scene: Scene, *names: str) -> None:
    """Victims are gone, and want to start again."""
    for name in names:
        wish = scene.core.gang(name).gang
        scene.leave(name)
        scene.core.request(wish)


@pytest.mark.parametrize("field", ["policy", "gang"])
def test_nobody_leaves_before_it_has_run_for_long_enough(field: str) -> None:
    if field == "policy":
        scene = full(a_scene(min_run_s=100.0))
    else:
        scene = full(a_scene(), min_run_s=100.0)
    decided = scene.asks(a_gang("high", priority=1))
    assert victims(decided) == []
    assert code_of(decided, "high") == "shape"
    told = reason(decided, "high")
    assert (told["protected"], told["protectedUntil"]) == (4, 101.0)
    assert scene.core.wakes_at() == 101.0
    scene.now = 99.5
    assert scene.cycle(0.5) == []
    assert victims(scene.cycle(1.0)) == ["a"]


def test_who_is_young_while_the_budget_is_used_up_is_protected_until_both_are_over() -> None:
    scene = full(a_scene(min_run_s=100.0, preemptions_per_hour=1))
    scene.now = 200.0
    assert victims(scene.asks(a_gang("first", priority=1))) == ["a"]
    scene.leave("a", "first")
    scene.cycle()
    scene.asks(a_gang("young"))
    decided = scene.asks(a_gang("high", priority=2))
    assert reason(decided, "high")["protectedUntil"] == 201.0 + 3600.0
    assert scene.core.questions.starts_at("high") == 201.0 + 3600.0
    assert scene.core.wakes_at() >= 201.0 + 3600.0


def test_a_nominated_gang_too_is_protected_while_the_budget_is_used_up() -> None:
    scene = full(a_scene(preemptions_per_hour=4))
    scene.asks(a_gang("first", 4, priority=1))
    decided = scene.asks(a_gang("high", priority=2))
    assert code_of(decided, "high") == "shape"
    told = reason(decided, "high")
    assert (told["protected"], told["protectedUntil"]) == (1, scene.now - 1.0 + 3600.0)


def test_what_its_own_job_says_counts_and_not_the_policy() -> None:
    scene = full(a_scene(min_run_s=100.0), min_run_s=0.0)
    assert victims(scene.asks(a_gang("high", priority=1))) == ["a"]
    assert scene.core.wakes_at() is None


def test_of_several_those_leave_that_are_not_protected() -> None:
    scene = a_scene()
    scene.asks(*(a_gang(name, min_run_s=None if name == "c" else 1000.0) for name in "abcd"))
    assert victims(scene.asks(a_gang("high", priority=1))) == ["c"]


def test_more_gpus_leave_where_who_has_fewer_is_protected() -> None:
    scene = a_scene()
    small = gang("small", "x", 1, min_run_s=1000.0)
    scene.asks(*(a_gang(name) for name in "abc"), small)
    scene.asks(gang("rest", "x", 2))
    (victim,) = victims(scene.asks(gang("high", "x", 2, priority=1)))
    assert victim == "rest"
    (victim,) = victims(scene.asks(a_gang("higher", priority=2)))
    assert victim in "abc"


def test_who_is_protected_may_be_downgraded() -> None:
    scene = Scene(config(policy=Policy(min_run_s=1000.0, is_lazy=True), x=owning(("rack/node", 2))))
    scene.asks(a_gang("a"), a_gang("b"))
    decided = scene.asks(a_gang("high", priority=1))
    assert [type(each) for each in decided] == [Downgraded, Placed]


def test_who_could_lose_its_cells_does_not_leave_instead_while_it_is_protected() -> None:
    """All machines are in use: without the cells of a lazy gang nothing is won."""
    policy = Policy(min_run_s=1000.0, is_lazy=True)
    scene = Scene(config(policy=policy, x=owning(("rack/node", 4))))
    full(scene)
    decided = scene.asks(a_gang("high", priority=1))
    assert [type(each) for each in decided] == [Reserved, Deferred]


def test_guests_leave_for_a_guarantee_though_they_are_protected() -> None:
    scene = full(shared(min_run_s=1000.0), priority=-1)
    assert victims(scene.asks(a_gang("high", priority=1))) == ["a"]


def test_of_guests_those_leave_that_are_not_protected() -> None:
    """Also where that costs more GPUs."""
    scene = shared()
    only = [frozenset({f"n{number}"}) for number in range(4)]
    scene.asks(
        gang("small", "y", 1, priority=-1, min_run_s=1000.0, allowed_nodes=only[0]),
        *(gang(f"g{n}", "y", 4, priority=-1, allowed_nodes=only[n]) for n in (1, 2, 3)),
    )
    assert victims(scene.asks(a_gang("high", priority=1))) == ["g1"]
    decided = scene.asks(a_gang("other", priority=1), gang("third", "y", 4, priority=1))
    assert victims(decided) == ["g2", "g3"]
    assert victims(scene.asks(gang("last", "y", 4, priority=1))) == ["small"]


@pytest.mark.parametrize("nodes", [1, 4, 5, 12])
def test_a_protected_gang_without_gpus_does_not_leave_where_any_number_of_gpus_would_do(
    nodes: int,
) -> None:
    """The one on n0 has all of its CPU; the other one has all GPUs of the others."""
    names = [f"m{number:02}" for number in range(nodes + 1)]
    cells = [PhysicalCell("node", name=name) for name in names]
    limits = {name: NodeLimits(cpu=8) for name in names}
    scene = Scene(config(cells, limits, FREE, x=owning(("node", 1)), y=owning(("node", nodes))))
    for name in names:
        scene.core.set_node_health(name, True)
    kept = {"allowed_nodes": frozenset(names[:1]), "min_run_s": 1000.0}
    scene.places(gang("bare", "x", 0, cpu=8, priority=-1, **kept))
    scene.places(gang("large", "x", 4, pods=nodes, cpu=1, priority=-1))
    assert victims(scene.asks(gang("own", "y", 1, cpu=1))) == ["large"]


def test_a_protected_gang_stays_where_others_would_do_that_cost_more_pod_by_pod() -> None:
    """Of ten that could leave: a large pod goes where least work is lost, and would leave to a
    small one, which wants CPU, the place of the protected gang alone.
    """
    names = [f"m{number}" for number in range(10)]
    cells = [
        PhysicalCell("node" if n < 3 else "old-node", name=name) for n, name in enumerate(names)
    ]
    limits = {name: NodeLimits(cpu=8 if name in ("m0", "m2") else 1) for name in names}
    owned = {"x": owning(("node", 3), ("old-node", 7)), "y": owning()}
    scene = Scene(config(cells, limits, FREE, **owned))
    for number, name in enumerate(names):
        scene.core.set_node_health(name, True)
        scene.now += 1.0 if name != "m0" else 0.0
        only = frozenset({name})
        run_s = 1000.0 if name == "m2" else 0.0
        scene.asks(
            gang(
                f"on-{name}",
                "y",
                4 if number < 3 else 2,
                priority=-1,
                allowed_nodes=only,
                min_run_s=run_s,
                checkpoint_s=1.0 if name == "m0" else None,
            )
        )
    roles = (Role(Kind(4), ("large",)), Role(Kind(2, cpu=8), ("small",)))
    asks = replace(gang("asks", "x", 1), roles=roles)
    assert sorted(victims(scene.asks(asks))) == ["on-m0", "on-m1"]


def test_no_more_leave_inside_a_virtual_cluster_than_its_budget_has() -> None:
    scene = full(a_scene(preemptions_per_hour=1))
    assert victims(scene.asks(a_gang("high", priority=1))) == ["a"]
    decided = scene.asks(a_gang("other", priority=1))
    assert victims(decided) == []
    told = reason(decided, "other")
    assert (told["protected"], told["protectedUntil"]) == (3, 3602.0)
    assert scene.core.wakes_at() == 3602.0
    scene.leave("a")
    scene.cycle()
    scene.now = 3601.0
    assert victims(scene.cycle(0.5)) == []
    assert victims(scene.cycle(0.5)) == ["b"]


def test_a_protection_ends_by_the_budget_of_its_own_virtual_cluster() -> None:
    scene = shared(preemptions_per_hour=1)
    scene.asks(*(gang(f"{vc}{n}", vc, 4) for vc in "xy" for n in range(2)))
    assert victims(scene.asks(gang("early", "y", 4, priority=1))) == ["y0"]
    scene.now = 1000.0
    assert victims(scene.asks(a_gang("high", priority=1))) == ["x0"]
    told = reason(scene.asks(a_gang("other", priority=1)), "other")
    assert (told["protected"], told["protectedUntil"]) == (1, 4601.0)


def test_a_gang_that_needs_more_victims_than_the_budget_has_waits() -> None:
    scene = full(a_scene(preemptions_per_hour=1))
    decided = scene.asks(a_gang("two", 2, priority=1))
    assert victims(decided) == []
    assert code_of(decided, "two") == "shape"
    told = next(each.reason for each in decided if isinstance(each, Deferred))
    assert "More gangs would be preempted than preemptionsPerHour allows." in told.text
    assert (told.numbers["protected"], "protectedUntil" in told.numbers) == (4, False)
    assert len(victims(scene.asks(a_gang("one", priority=1)))) == 1


def test_a_budget_of_none_is_named() -> None:
    scene = full(a_scene(preemptions_per_hour=0))
    told = reason(scene.asks(a_gang("high", priority=1)), "high")
    assert (told["protected"], "protectedUntil" in told) == (4, False)


@pytest.mark.parametrize(
    ("budget", "spent", "starts_at"),
    [
        (2, 2, 3_602.0),  # both are allowed again
        (2, 1, 3_602.0),  # one is allowed now, the other then
        (1, 1, 10_001.0),  # one is allowed then; the other has to end
        (0, 0, 10_001.0),
    ],
)
def test_cells_are_reserved_from_when_the_budget_allows_all_victims(
    budget: int, spent: int, starts_at: float
) -> None:
    scene = full(a_scene(preemptions_per_hour=budget), limit_s=10_000.0)
    firsts = [a_gang(f"first{n}", priority=2, limit_s=20_000.0) for n in range(spent)]
    assert len(victims(scene.asks(*firsts))) == spent
    decided = scene.asks(a_gang("two", 2, priority=1))
    assert [each.starts_at for each in decided if isinstance(each, Reserved)] == [starts_at]


def test_who_needs_more_victims_than_the_budget_has_is_not_starved_by_small_gangs() -> None:
    scene = full(a_scene(preemptions_per_hour=1), limit_s=100.0)
    scene.cycle()
    assert victims(scene.asks(a_gang("two", 2, priority=1))) == []
    ends = scene.core.questions.counterfactual("two").ends
    assert ends is not None
    assert len(ends.gangs) == 1  # the budget has room for one more
    scene.leave("a")
    scene.asks(*(a_gang(f"small{n}", limit_s=100.0) for n in range(4)))
    decided = scene.cycle()
    assert [each.gang for each in decided if isinstance(each, Placed)] == []


def test_guests_leave_where_the_budget_is_used_up() -> None:
    scene = shared(preemptions_per_hour=0)
    scene.asks(gang("low", "x", 1, allowed_nodes=frozenset({"n0"})))
    scene.asks(*(gang(f"g{n}", "y", 4, priority=-1) for n in range(3)))
    decided = scene.asks(a_gang("high", priority=1))
    (victim,) = victims(decided)
    assert victim.startswith("g")


def test_guests_of_a_virtual_cluster_without_budget_leave_after_others() -> None:
    scene = shared(preemptions_per_hour=1)
    scene.asks(a_gang("low"), a_gang("own", priority=2))
    scene.asks(a_gang("guest-of-x", priority=-1), gang("guest-of-y", "y", 4, priority=-1))
    assert victims(scene.asks(a_gang("high", priority=1))) == ["low"]
    assert victims(scene.asks(gang("asks", "y", 4, priority=1))) == ["guest-of-y"]


def test_a_drain_costs_no_budget_and_heeds_no_protection() -> None:
    scene = full(a_scene(preemptions_per_hour=1, min_run_s=1000.0))
    scene.core.drain("n3")
    assert len(victims(scene.cycle())) == 1
    assert scene.core.rows.preemptions() == []


def test_cells_are_kept_until_who_is_there_may_have_to_leave() -> None:
    scene = full(a_scene(min_run_s=100.0, is_backfilling=True, assumed_s=10_000.0))
    decided = scene.asks(a_gang("high", 2, priority=1))
    (kept,) = [each for each in decided if isinstance(each, Reserved)]
    assert kept.starts_at == 101.0
    scene.now = 100.0
    assert len(victims(scene.cycle())) == 2


def test_who_expected_to_be_gone_is_not_protected() -> None:
    scene = a_scene(
        is_backfilling=True, assumed_s=1_000.0, max_pass_s=500.0, min_run_s=9e9,
        preemptions_per_hour=0,
    )  # fmt: skip
    scene.asks(a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    scene.asks(a_gang("slow", 1, expected_s=50.0))
    scene.leave("half")
    scene.now = 100.0
    assert victims(scene.cycle()) == ["slow"]
    assert scene.core.rows.preemptions() == []  # no budget pays for it


def test_after_a_restart_the_same_are_protected() -> None:
    scene = full(a_scene(min_run_s=50.0, preemptions_per_hour=2))
    scene.now = 60.0
    assert victims(scene.asks(a_gang("high", priority=1))) == ["a"]
    scene.asks(a_gang("other", 2, priority=1))
    scene.leave("a")
    scene.cycle()
    again = a_scene(min_run_s=50.0, preemptions_per_hour=2)
    for preemption in scene.core.rows.preemptions():
        again.core.rows.restore_preemption(preemption)
    for name in ("b", "c", "d", "high"):
        again.core.restore(scene.core.exported(name), scene.now)
    again.core.request(scene.core.gang("other").gang, "shape")
    again.now = scene.now
    again.cycle(0.0)
    assert again.core.wakes_at() == scene.core.wakes_at()
    again.now = scene.now = 3660.0
    decided = scene.cycle()
    assert len(victims(decided)) == 2
    assert again.cycle() == decided


def test_who_wants_more_may_cost_fewer_gangs_than_a_budget_has_left() -> None:
    """Two small ones are fewer GPUs than the large one, and more gangs."""
    cells = [PhysicalCell("node", name=name) for name in ("n0", "n1")]
    policy = Policy(order_by=("priority", "age"), is_backfilling=False, preemptions_per_hour=1)
    scene = Scene(config(cells, policy=policy, x=owning(("node", 2))))
    scene.places(gang("four", "x", 4))
    scene.asks(gang("a", "x", 1), gang("b", "x", 1), gang("other", "x", 2, priority=9))
    two = gang("two", "x", 2, priority=5, submitted_at=1.0)
    three = gang("three", "x", 3, priority=5, submitted_at=2.0)
    assert victims(scene.asks(two)) == []
    assert victims(scene.asks(three)) == ["four"]
