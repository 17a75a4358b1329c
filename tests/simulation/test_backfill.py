"""Who may pass whom: cells are kept for the first gang that can't start, and nobody delays it who
would not be gone in time.
"""

from dataclasses import replace

import pytest
from scenes import RACKS, TYPES, Scene, code_of, config, gang, owning
from scheduler.domain.core.config import CellType, NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Gang,
    Grown,
    Kind,
    Placed,
    Preempted,
    Reserved,
    Role,
    Shrunk,
)

KEEPING = Policy(is_backfilling=True, assumed_s=1_000.0, max_pass_s=500.0)


def a_scene(policy: Policy = KEEPING) -> Scene:
    """Four machines of four GPUs, all of one virtual cluster."""
    return Scene(config(policy=policy, x=owning(("rack/node", 4))))


def a_gang(name: str, machines: int, **more: object) -> Gang:
    """One that takes whole machines."""
    return gang(name, "x", 4, pods=machines, **more)


def placed(decisions: list[Decision]) -> list[str]:
    """Who starts."""
    return [each.gang for each in decisions if isinstance(each, Placed)]


def reserved(decisions: list[Decision], name: str) -> Reserved:
    """What is kept for a gang."""
    return [each for each in decisions if isinstance(each, Reserved) and each.gang == name][-1]


def waiting_for_half() -> Scene:
    """``large`` wants all four machines; ``half`` runs on two of them, until 101 s."""
    scene = a_scene()
    assert placed(scene.asks(a_gang("half", 2, expected_s=100.0))) == ["half"]
    kept = reserved(scene.asks(a_gang("large", 4)), "large")
    assert kept.starts_at == 101.0
    assert {node for node, _ in kept.cells} == {"n0", "n1", "n2", "n3"}
    return scene


def test_who_loses_its_reservation_to_a_bad_node_has_it_again_when_the_node_is_well() -> None:
    scene = waiting_for_half()
    scene.core.set_node_health("n0", False)
    assert reserved(scene.cycle(), "large").starts_at is None
    scene.core.set_node_health("n0", True)
    assert reserved(scene.cycle(), "large").starts_at == 101.0
    assert placed(scene.asks(a_gang("long", 1, expected_s=900.0))) == []


def test_cells_and_a_time_are_kept_for_the_first_that_can_not_start() -> None:
    scene = waiting_for_half()
    told = scene.asks(a_gang("small", 1))
    assert placed(told) == []
    assert code_of(told, "small") == "reservation"
    (why,) = [each.reason for each in told if isinstance(each, Deferred)]
    assert (why.numbers["for"], why.numbers["startsAt"]) == ("large", 101.0)


def test_who_lacked_quota_is_told_that_what_ended_since_is_reserved() -> None:
    scene = a_scene()
    scene.asks(a_gang("soon", 2, expected_s=50.0), a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    assert code_of(scene.asks(a_gang("unknown", 1)), "unknown") == "quota"
    scene.leave("soon")
    scene.cycle()
    why = scene.core.questions.reason_of("unknown")
    assert why is not None
    assert (why.code, why.numbers["for"]) == ("reservation", "large")


def test_who_waits_for_a_guaranteed_gang_without_cells_is_not_passed() -> None:
    """A gang without GPUs runs beside its virtual cluster's cells. Its end is awaited too."""
    node = (PhysicalCell("node", name="n0"),)
    scene = Scene(config(node, {"n0": NodeLimits(cpu=8)}, KEEPING, x=owning(("node", 1))))
    assert placed(scene.asks(gang("trains", "x", 4, cpu=2, expected_s=50.0))) == ["trains"]
    assert placed(scene.asks(gang("etl", "x", 0, cpu=4, expected_s=100.0))) == ["etl"]
    scene.leave("trains")
    assert reserved(scene.asks(gang("waits", "x", 4, cpu=8)), "waits").starts_at == 102.0
    assert placed(scene.asks(gang("later", "x", 4, cpu=2))) == []
    scene.leave("etl")
    assert placed(scene.cycle()) == ["waits"]


def test_any_gang_that_fits_may_pass_where_no_cells_are_kept() -> None:
    scene = a_scene(replace(KEEPING, is_backfilling=False))
    scene.asks(a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    assert placed(scene.asks(a_gang("small", 1))) == ["small"]


@pytest.mark.parametrize("bound", ["limit_s", "expected_s"])
def test_who_will_be_gone_in_time_may_pass(bound: str) -> None:
    scene = waiting_for_half()
    assert placed(scene.asks(a_gang("late", 1, **{bound: 100.0}))) == []
    assert placed(scene.asks(a_gang("quick", 1, **{bound: 90.0}))) == ["quick"]


def test_who_passes_by_what_it_expects_though_its_limit_is_later_leaves_first() -> None:
    scene = waiting_for_half()
    slow = a_gang("slow", 1, limit_s=200.0, expected_s=10.0, min_run_s=1_000.0)
    assert placed(scene.asks(slow)) == ["slow"]
    scene.leave("half")
    scene.now = 20.0
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang, told.reason.code) == ("slow", "large", "reservation")


def test_nobody_passes_for_longer_than_the_policy_says() -> None:
    policy = replace(KEEPING, max_pass_s=20.0)
    scene = a_scene(policy)
    scene.asks(a_gang("half", 2, expected_s=100.0))
    scene.asks(a_gang("large", 4))
    assert placed(scene.asks(a_gang("early", 1, limit_s=5.0))) == ["early"]
    scene.leave("early")
    scene.now = 22.0
    assert placed(scene.asks(a_gang("late", 1, limit_s=5.0))) == []


def test_who_comes_before_by_priority_is_not_held() -> None:
    scene = waiting_for_half()
    assert placed(scene.asks(a_gang("urgent", 1, priority=1))) == ["urgent"]


@pytest.mark.parametrize(("priority", "starts"), [(1, True), (0, False)])
@pytest.mark.parametrize("pods", [1, 2])
def test_the_next_attempt_of_who_was_failed_goes_before_reservations_of_its_priority(
    pods: int, priority: int, starts: bool
) -> None:
    scene = a_scene()
    scene.asks(a_gang("soon", 1, priority=1, expected_s=100.0))
    scene.asks(a_gang("failed", 2, priority=1, expected_s=1_000.0))
    kept = reserved(scene.asks(a_gang("large", 2, priority=1)), "large")
    assert [node for node, _ in kept.cells] == ["n0", "n1"]
    scene.core.set_node_health("n3", False)
    if pods == 2:
        scene.core.requeue("failed", scene.now + 60.0)  # n2 is kept
        scene.cycle()
    else:
        scene.core.set_node_health("n2", False)
        scene.core.release("failed")
    again = a_gang("again", pods, priority=priority, submitted_at=9.0, follows="failed")
    assert "other" not in placed(scene.asks(replace(again, id="other", follows=None)))
    has_kept = pods == 2  # n1 too, chosen for a gang of the priority of the failed one
    assert ("again" in placed(scene.asks(again))) is (starts or has_kept)


def test_opportunistic_gangs_may_be_on_kept_cells_until_they_are_wanted() -> None:
    scene = waiting_for_half()
    assert placed(scene.asks(a_gang("guest", 2, priority=-1))) == ["guest"]
    scene.leave("half")
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang) == ("guest", "large")


def test_the_large_gang_starts_when_the_cells_are_free_though_small_ones_wait() -> None:
    scene = waiting_for_half()
    scene.asks(*(a_gang(f"small{number}", 1) for number in range(5)))
    scene.leave("half")
    assert placed(scene.cycle()) == ["large"]


def test_who_expected_to_be_gone_and_is_not_leaves_first_when_the_time_has_come() -> None:
    scene = waiting_for_half()
    scene.asks(a_gang("slow", 1, expected_s=50.0), a_gang("guest", 1, priority=-1))
    scene.leave("half")
    assert [type(each) for each in scene.cycle()] == []  # its time has not come
    scene.now = 100.0
    told = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert {each.gang for each in told} == {"slow", "guest"}
    (slow,) = [each for each in told if each.gang == "slow"]
    assert (slow.for_gang, slow.reason.code) == ("large", "reservation")


def test_who_runs_longer_than_it_expected_leaves_as_soon_as_the_gang_could_start() -> None:
    """Though the time is far: ``half`` had expected to run on."""
    scene = waiting_for_half()
    assert placed(scene.asks(a_gang("slow", 1, expected_s=20.0))) == ["slow"]
    scene.now = 20.0
    scene.leave("half")
    assert [each for each in scene.cycle() if isinstance(each, Preempted)] == []
    assert scene.core.wakes_at() == 23.0
    scene.now = 22.0
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang, told.reason.code) == ("slow", "large", "reservation")


def test_who_runs_longer_than_it_expected_does_not_put_off_the_time() -> None:
    scene = a_scene()
    scene.asks(a_gang("half", 2, expected_s=100.0, limit_s=150.0))
    assert reserved(scene.asks(a_gang("large", 4)), "large").starts_at == 101.0
    assert placed(scene.asks(a_gang("slow", 1, expected_s=90.0))) == ["slow"]
    scene.now = 100.5
    assert reserved(scene.cycle(), "large").starts_at == 151.0  # when half ends, and not slow


def test_who_stays_too_long_is_not_awaited() -> None:
    """It leaves when the reserving gang can start."""
    scene = waiting_for_half()
    scene.asks(a_gang("slow", 1, expected_s=20.0))
    scene.now = 30.0
    scene.cycle()
    ends = scene.core.questions.counterfactual("large").ends
    assert ([end.gang for end in ends.gangs], ends.at) == (["half"], 101.0)


def test_a_gang_that_begins_anew_is_no_longer_on_cells_that_are_kept_for_another() -> None:
    scene = waiting_for_half()
    scene.asks(a_gang("slow", 1, expected_s=50.0))
    assert scene.core.gangs["slow"].passed == "large"
    scene.core.grow("slow", (Role(Kind(4), ("more",)),))
    scene.core.release_pod("slow", "p0")
    assert scene.core.gangs["slow"].passed is None


def test_who_passed_by_its_limit_is_not_made_to_leave_before_the_time_has_come() -> None:
    scene = waiting_for_half()
    assert placed(scene.asks(a_gang("ends", 1, limit_s=80.0, expected_s=10.0))) == ["ends"]
    scene.leave("half")
    scene.now = 90.0
    assert [each for each in scene.cycle() if isinstance(each, Preempted)] == []


def test_who_stays_beyond_its_limit_puts_the_reservation_off_by_the_grace() -> None:
    """A limit that counts from when a gang's processes run ends later than one that counts from its
    placement.
    """
    scene = waiting_for_half()
    scene.asks(a_gang("ends", 1, limit_s=90.0))
    scene.leave("half")
    scene.now = 100.0
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.reason.code, told.until) == ("ends", "reservation", 131.0)
    assert placed(scene.asks(a_gang("day", 1, limit_s=900.0))) == []
    scene.leave("ends")
    assert placed(scene.cycle()) == ["large"]


def test_who_is_past_its_limit_is_about_to_leave() -> None:
    scene = a_scene()
    scene.asks(a_gang("half", 2, limit_s=100.0))
    assert reserved(scene.asks(a_gang("large", 4)), "large").starts_at == 101.0
    scene.now = 100.5
    assert reserved(scene.cycle(), "large").starts_at == 131.0
    scene.now = 130.5
    assert reserved(scene.cycle(), "large").starts_at == 161.0  # twice the grace


def test_who_leaves_by_priority_is_told_so_though_it_is_on_kept_cells() -> None:
    scene = a_scene(replace(KEEPING, preemptions_per_hour=1))
    scene.asks(a_gang("half", 2, priority=1, expected_s=100.0))
    reserved(scene.asks(a_gang("large", 4, priority=1)), "large")
    assert placed(scene.asks(a_gang("low", 1, expected_s=90.0))) == ["low"]
    scene.leave("half")
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang, told.reason.code) == ("low", "large", "priority")
    assert len(scene.core.rows.preemptions()) == 1


def test_who_is_protected_and_has_kept_cells_is_awaited_once() -> None:
    """While cells of another type are kept for a second gang."""
    old = (PhysicalCell("k80-node", name="m0"), PhysicalCell("k80-node", name="m1"))
    policy = replace(KEEPING, min_run_s=50.0)
    owned = owning(("rack/node", 4), ("k80-node", 2))
    scene = Scene(config((*RACKS, *old), policy=policy, x=owned))
    new: dict[str, object] = {"gpu_types": ("v100",)}
    scene.asks(
        a_gang("half", 2, priority=1, expected_s=100.0, **new),
        a_gang("low", 1, expected_s=300.0, **new),
        gang("olds", "x", 2, pods=2, priority=1, expected_s=1_000.0, gpu_types=("k80",)),
    )
    assert reserved(scene.asks(a_gang("large", 4, priority=1, **new)), "large").starts_at == 101.0
    kept = scene.asks(gang("old", "x", 2, pods=2, priority=1, gpu_types=("k80",)))
    assert reserved(kept, "old").starts_at == 1_001.0


def test_what_is_assumed_or_expected_doubles_when_it_has_passed() -> None:
    scene = waiting_for_half()
    scene.now = 100.5
    assert reserved(scene.cycle(), "large").starts_at == 201.0
    scene.now = 200.5
    assert reserved(scene.cycle(), "large").starts_at == 401.0


def test_who_is_gone_by_the_later_time_passes_at_once() -> None:
    scene = waiting_for_half()
    scene.now = 49.0
    assert placed(scene.asks(a_gang("small", 1, limit_s=90.0))) == []
    scene.now = 100.5
    decided = scene.cycle()
    assert reserved(decided, "large").starts_at == 201.0
    assert placed(decided) == ["small"]
    assert [type(each) for each in scene.cycle()] == []


def test_one_of_a_higher_priority_takes_the_reservation_over() -> None:
    scene = a_scene()
    scene.asks(a_gang("half", 2, priority=1))
    reserved(scene.asks(a_gang("large", 4)), "large")
    decided = scene.asks(a_gang("urgent", 4, priority=1))
    assert reserved(decided, "large").starts_at is None
    assert reserved(decided, "urgent").starts_at is not None


def test_cells_that_turn_bad_are_others_then() -> None:
    scene = Scene(config(policy=KEEPING, x=owning(("rack/node", 2)), y=owning(("rack/node", 1))))
    scene.asks(a_gang("one", 1, expected_s=100.0))
    before = reserved(scene.asks(a_gang("two", 2)), "two")
    (other,) = {node for node, _ in before.cells} - {"n0"}
    scene.core.set_node_health(other, False)
    after = reserved(scene.cycle(), "two")
    assert other not in {node for node, _ in after.cells}


def test_nobody_passes_where_the_order_is_strict() -> None:
    scene = a_scene(replace(KEEPING, is_strict=True))
    scene.asks(a_gang("half", 2))
    scene.asks(a_gang("large", 4))
    told = scene.asks(a_gang("small", 1, limit_s=1.0), a_gang("guest", 1, priority=-1))
    assert placed(told) == ["guest"]
    assert code_of(told, "small") == "order"
    scene.leave("large")
    assert placed(scene.cycle()) == ["small"]


def test_who_is_next_is_tried_when_the_first_has_started_for_whom_others_left() -> None:
    scene = a_scene(Policy(is_strict=True))
    scene.asks(a_gang("low", 2))
    scene.asks(a_gang("first", 3, priority=5))
    assert code_of(scene.asks(a_gang("second", 1, priority=5)), "second") == "order"
    scene.leave("low")
    assert placed(scene.cycle()) == ["first", "second"]


def test_who_would_leave_kept_cells_for_their_gang_leaves_them_for_nobody_after_it() -> None:
    """``low`` is on a machine that ``large`` gets when ``half`` has ended."""
    scene = a_scene()
    scene.asks(a_gang("half", 2, priority=1, expected_s=100.0), a_gang("low", 1))
    kept = reserved(scene.asks(a_gang("large", 4, priority=1)), "large")
    assert kept.starts_at == 101.0
    told = scene.asks(a_gang("small", 1, priority=1))
    assert code_of(told, "small") == "reservation"
    assert [each for each in told if isinstance(each, Preempted)] == []
    (urgent,) = [e for e in scene.asks(a_gang("urgent", 2, priority=2)) if isinstance(e, Preempted)]
    assert (urgent.gang, urgent.for_gang) == ("low", "urgent")


def test_it_leaves_for_others_when_nothing_is_kept_there_any_more() -> None:
    scene = a_scene()
    scene.asks(a_gang("half", 2, priority=1, expected_s=100.0), a_gang("low", 1))
    scene.asks(a_gang("large", 4, priority=1))
    scene.asks(a_gang("small", 2, priority=1))
    scene.leave("large")
    (told,) = [each for each in scene.cycle() if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang) == ("low", "small")


def test_who_is_next_has_its_reservation_before_smaller_ones_behind_it_are_tried() -> None:
    """``next`` lacks quota still while ``first`` takes what has ended, and so is not tried."""
    scene = a_scene()
    scene.asks(a_gang("run", 4))
    scene.asks(a_gang("first", 2))
    scene.asks(a_gang("next", 4))
    scene.asks(a_gang("small", 2))
    scene.leave("run")
    told = scene.cycle()
    assert placed(told) == ["first"]
    assert reserved(told, "next").cells
    assert code_of(told, "small") == "reservation"


def test_opportunistic_gangs_leave_alone_what_is_reserved_for_who_may_borrow() -> None:
    scene = Scene(config(policy=KEEPING, x=owning(("rack/node", 3))))
    scene.asks(a_gang("run", 1))
    told = scene.asks(a_gang("large", 3, is_borrowing=True), a_gang("guest", 1, priority=-1))
    kept = {node for node, _ in reserved(told, "large").cells}
    (guest,) = [each for each in told if isinstance(each, Placed)]
    assert not kept & {place.node for place in guest.pods}


def test_who_is_next_is_tried_when_the_first_is_refused() -> None:
    scene = a_scene(replace(KEEPING, is_strict=True))
    told = scene.asks(a_gang("too-large", 5), a_gang("small", 1))
    assert placed(told) == ["small"]


def test_the_first_that_asks_for_less_is_tried_again_where_nobody_may_pass() -> None:
    scene = a_scene(replace(KEEPING, is_strict=True))
    scene.asks(a_gang("most", 3))
    assert placed(scene.asks(a_gang("first", 2), a_gang("second", 1))) == []
    scene.core.release_pod("first", "p1")
    assert placed(scene.cycle()) == ["first"]


@pytest.mark.parametrize("pods", [1, 2])
def test_who_grows_takes_what_is_kept_for_a_lower_one_when_that_is_free(pods: int) -> None:
    scene = Scene(config(policy=Policy(), x=owning(("rack", 2))))
    scene.places(gang("high", "x", 4, priority=3))
    scene.places(gang("b1", "x", 3, priority=3))
    scene.places(gang("b2", "x", 3, priority=3))
    scene.places(gang("b3", "x", 2, priority=3, expected_s=100.0))
    scene.core.grow("high", (Role(Kind(4), ("more",)),))
    scene.cycle()
    scene.asks(gang("low", "x", 4, pods=pods, priority=2))
    scene.leave("b3")
    decided = scene.cycle()
    assert [each.gang for each in decided if isinstance(each, Grown)] == ["high"]
    assert not [each for each in decided if isinstance(each, Preempted)]


@pytest.mark.parametrize("others", [0, 1])
def test_where_priority_is_not_the_first_who_goes_before_is_tried_whoever_waits(
    others: int,
) -> None:
    scene = a_scene(replace(KEEPING, order_by=("age",)))
    scene.places(a_gang("half", 2, submitted_at=0.0, expected_s=1_000.0))
    scene.asks(a_gang("large", 4, submitted_at=10.0))
    for number in range(others):
        scene.asks(a_gang(f"young{number}", 1, submitted_at=20.0))
    assert placed(scene.asks(a_gang("old", 1, submitted_at=1.0))) == ["old"]


def test_quota_that_is_wanting_for_kept_cells_is_kept_where_it_is() -> None:
    """Of three nodes' quota one is in a fourth node, in which others could go on starting."""
    scene = Scene(config(policy=KEEPING, x=owning(("rack/node", 3))))
    elsewhere = frozenset({"n3"})
    scene.places(gang("one", "x", 2, expected_s=100.0, allowed_nodes=elsewhere))
    scene.asks(a_gang("large", 3, allowed_nodes=frozenset({"n0", "n1", "n2"})))
    told = scene.asks(gang("long", "x", 2, expected_s=1_000.0, allowed_nodes=elsewhere))
    assert placed(told) == []
    assert code_of(told, "long") == "reservation"
    short = gang("short", "x", 2, limit_s=50.0, allowed_nodes=elsewhere)
    assert placed(scene.asks(short)) == ["short"]
    scene.leave("one")
    assert placed(scene.cycle()) == []
    scene.leave("short")
    assert placed(scene.cycle()) == ["large"]


@pytest.mark.parametrize("pods", [1, 2, 3])
def test_nobody_shrinks_for_who_comes_after_one_for_whose_kept_cells_quota_is_wanting(
    pods: int,
) -> None:
    """The large gang wants a node for which there is quota when a gang on another has ended."""
    scene = Scene(config(policy=KEEPING, x=owning(("rack/node", 3))))
    for name, node in (("one", "n0"), ("other", "n1")):
        scene.places(gang(name, "x", 4, expected_s=100.0, allowed_nodes=frozenset({node})))
    role = Role(Kind(1), ("p0", "p1", "p2", "p3"), "p", 1)
    elastic = replace(gang("elastic", "x", 1, allowed_nodes=frozenset({"n2"})), roles=(role,))
    assert len(scene.places(elastic)) == 4
    scene.places(gang("guest", "x", 0, priority=-1))  # somebody could have to leave
    large = reserved(scene.asks(a_gang("large", 1, allowed_nodes=frozenset({"n3"}))), "large")
    assert large.cells == (("n3", (0, 1, 2, 3)),)
    decided = scene.asks(gang("small", "x", 1, pods))
    assert [each for each in decided if isinstance(each, Shrunk | Preempted)] == []
    scene.leave("one")
    decided = scene.cycle()
    assert placed(decided) == ["large"]
    assert {each.for_gang for each in decided if isinstance(each, Shrunk)} == {"small"}


@pytest.mark.parametrize("budget", [None, 1])
def test_cells_are_kept_for_who_waits_for_some_that_are_protected_and_some_that_are_not(
    budget: int | None,
) -> None:
    policy = replace(KEEPING, min_run_s=100.0, preemptions_per_hour=budget)
    types = TYPES | {"eight": CellType("switch", 4, is_node=True)}
    world = config(
        (PhysicalCell("eight", name="n0"),), policy=policy, x=owning(("eight/switch", 2))
    )
    scene = Scene(replace(world, cell_types=types))
    scene.places(gang("old", "x", 2, expected_s=300.0))
    scene.now = 60.0
    scene.places(gang("young", "x", 2, expected_s=300.0))
    scene.now = 120.0
    told = scene.asks(gang("high", "x", 4, priority=1))
    assert sum(len(gpus) for _, gpus in reserved(told, "high").cells) == 4
    scene.leave("old")
    low = scene.asks(gang("low", "x", 2, expected_s=1_000.0))
    assert code_of(low, "low") == "reservation"
