"""Gangs that borrow: they use idle quota of other virtual clusters, and give it back on demand."""

from dataclasses import replace

from scenes import RACKS, Scene, code_of, config, gang, owning
from scheduler.domain.core.config import NodeLimits, PhysicalCell, Policy
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
    Role,
    Shrunk,
    Upgraded,
)


def a_scene(
    policy: Policy = Policy(),  # noqa: B008  (a frozen value)
    lending: dict[str, int] | None = None,
    borrowing: dict[str, int] | None = None,
) -> Scene:
    """Four machines of four GPUs: ``x`` owns one of them, ``y`` two, ``z`` one."""
    x = replace(owning(("rack/node", 1)), borrowing_limit=borrowing or {})
    y = replace(owning(("rack/node", 2)), lending_limit=lending or {})
    return Scene(config(policy=policy, x=x, y=y, z=owning(("rack/node", 1))))


def borrower(name: str, gpus: int = 4, pods: int = 1, **more: object) -> Gang:
    """A gang of ``x``."""
    return gang(name, "x", gpus, pods, is_borrowing=True, **more)


def lender_of(decisions: list[Decision], name: str) -> str | None:
    """In whose quota a gang was placed."""
    (placed,) = [each for each in decisions if isinstance(each, Placed) and each.gang == name]
    return placed.lender


def of(decisions: list[Decision], what: type) -> list[str]:
    """The gangs of which this was decided."""
    return [each.gang for each in decisions if isinstance(each, what)]


def test_its_own_quota_comes_first_then_the_one_with_most_to_lend() -> None:
    scene = a_scene()
    assert lender_of(scene.asks(borrower("a")), "a") is None
    assert lender_of(scene.asks(borrower("b")), "b") == "y"
    assert lender_of(scene.asks(borrower("c")), "c") == "y"  # by name: each could lend one
    assert lender_of(scene.asks(borrower("d")), "d") == "z"
    assert code_of(scene.asks(borrower("e")), "e") == "quota"


def test_who_does_not_say_so_borrows_nothing() -> None:
    scene = a_scene()
    scene.asks(gang("a", "x", 4))
    assert code_of(scene.asks(gang("b", "x", 4)), "b") == "quota"


def test_what_is_lent_is_given_back_on_demand() -> None:
    scene = a_scene()
    scene.asks(borrower("a"), borrower("b", pods=2))
    decided = scene.asks(gang("own", "y", 4, pods=2))
    (told,) = [each for each in decided if isinstance(each, Preempted)]
    assert (told.gang, told.for_gang, told.reason.code) == ("b", "own", "reclaimed")
    assert told.until == scene.now + 30
    scene.leave("b")
    assert lender_of(scene.cycle(), "own") is None


def test_what_was_borrowed_runs_on_where_only_its_quota_is_wanted() -> None:
    """As a downgraded gang, where the lender's own find GPUs elsewhere."""
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack/node", 1))))
    scene.asks(borrower("a"))
    assert lender_of(scene.asks(borrower("b")), "b") == "y"
    decided = scene.asks(gang("own", "y", 4))
    assert (of(decided, Downgraded), of(decided, Preempted)) == (["b"], [])
    assert lender_of(decided, "own") is None
    scene.leave("a")
    assert of(scene.cycle(), Upgraded) == ["b"]  # to its own virtual cluster's quota
    assert scene.core.exported("b").lender is None


def test_who_would_rather_leave_than_lose_its_cells_leaves() -> None:
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack/node", 1))))
    scene.asks(borrower("a"), borrower("b", is_lazy=False))
    decided = scene.asks(gang("own", "y", 4))
    assert (of(decided, Downgraded), of(decided, Preempted)) == ([], ["b"])


def test_those_who_borrow_leave_before_the_lender_s_own() -> None:
    """However small these are, and however large the loan."""
    scene = Scene(config(x=owning(), y=owning(("rack/node", 4))))
    scene.asks(gang("low", "y", 1), borrower("large", 4, pods=3, priority=9))
    decided = scene.asks(gang("own", "y", 4, priority=5))
    assert of(decided, Preempted) == ["large"]


def test_those_who_borrow_leave_before_opportunistic_gangs() -> None:
    scene = Scene(config(x=owning(), y=owning(("rack/node", 4))))
    scene.asks(borrower("b", 4, pods=2), gang("guest", "x", 4, pods=2, priority=-1))
    assert of(scene.asks(gang("own", "y", 4)), Preempted) == ["b"]


def test_protection_only_ranks_those_who_borrow() -> None:
    scene = Scene(config(x=owning(), y=owning(("rack/node", 4))))
    scene.asks(borrower("safe", 4, pods=2, min_run_s=900.0), borrower("other", 4, pods=2))
    decided = scene.asks(gang("own", "y", 4))
    assert of(decided, Preempted) == ["other"]
    scene.leave("other")
    scene.asks(gang("low", "y", 4))
    assert of(scene.asks(gang("high", "y", 4, priority=1)), Preempted) == ["safe"]


def test_a_loan_costs_no_budget_of_preemptions() -> None:
    policy = Policy(preemptions_per_hour=0)
    scene = Scene(config(policy=policy, x=owning(), y=owning(("rack/node", 4))))
    scene.asks(borrower("b", 4, pods=4))
    assert of(scene.asks(gang("own", "y", 4)), Preempted) == ["b"]


def test_others_than_its_lender_take_nothing_of_a_loan() -> None:
    """Not even CPU, though an opportunistic gang is dearer."""
    nodes = {"n0": NodeLimits(cpu=16)}
    half = owning(("rack/node/switch", 1))
    machine = [PhysicalCell("rack", name="r0", nodes=("n0", "n1"))]
    scene = Scene(config(machine, nodes=nodes, x=owning(), y=half, z=half))
    scene.core.cordon("n1")
    scene.asks(borrower("b", 1, cpu=8))
    (place,) = scene.core.exported("b").places
    others = {0, 1, 2, 3} - {*place.gpus, *place.charged}
    for gpu in others:  # so that the guest is beside the loan
        scene.core.set_gpu_health("n0", gpu, False)
    scene.places(gang("guest", "x", 1, cpu=8, priority=-1))
    for gpu in others:
        scene.core.set_gpu_health("n0", gpu, True)
    assert scene.core.exported("b").lender == "y"
    assert of(scene.asks(gang("own", "z", 1, cpu=8)), Preempted) == ["guest"]


def test_nobody_has_to_leave_for_a_loan() -> None:
    scene = a_scene()
    scene.asks(gang("guest", "z", 4, pods=4, priority=-1))
    scene.core.release_pod("guest", "p0")
    assert lender_of(scene.asks(borrower("a")), "a") is None
    assert of(scene.asks(borrower("b")), Preempted) == []


def test_the_lender_s_own_that_come_with_it_are_first() -> None:
    """Whatever their priority is: else they would have to be given room at once."""
    scene = Scene(config(x=owning(), y=owning(("rack/node", 1))))
    decided = scene.asks(borrower("b", priority=1000), gang("own", "y", 4, priority=0))
    assert (of(decided, Placed), of(decided, Preempted)) == (["own"], [])


def test_who_borrows_comes_before_opportunistic_gangs() -> None:
    scene = Scene(config(x=owning(), y=owning(("rack/node", 4))))
    guest = gang("a", "y", 4, pods=4, priority=-1)
    assert of(scene.asks(guest, borrower("b", 4, pods=4)), Placed) == ["b"]


def test_of_those_who_borrow_the_first_in_order_is_first() -> None:
    scene = Scene(config(x=owning(), y=owning(("rack/node", 1)), z=owning()))
    later = gang("a", "z", 4, is_borrowing=True, priority=1)
    assert of(scene.asks(later, borrower("b", priority=2)), Placed) == ["b"]


def test_it_comes_to_its_own_quota_when_there_is_room() -> None:
    scene = a_scene()
    scene.asks(borrower("a"), borrower("b"))
    places = scene.core.exported("b").places
    scene.leave("a")
    assert of(scene.cycle(), Upgraded) == ["b"]
    assert scene.core.exported("b").places == places
    decided = scene.asks(gang("own", "y", 4, pods=2))
    assert of(decided, Preempted) == []


def test_what_its_own_quota_can_t_cover_where_it_runs_stays_a_loan() -> None:
    """A machine of a rack that is its lender's as a whole."""
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack", 1))))
    scene.asks(gang("own", "y", 4), borrower("a"), borrower("b"))
    scene.leave("a")
    assert of(scene.cycle(), Upgraded) == []
    scene.leave("own")
    assert of(scene.cycle(), Upgraded) == ["b"]  # then the rack is nobody's


def test_a_virtual_cluster_lends_within_its_limit() -> None:
    scene = a_scene(lending={"v100": 4})
    scene.asks(gang("full", "z", 4), borrower("a"))
    decided = scene.asks(borrower("b"), borrower("c"))
    assert [lender_of(decided, "b"), of(decided, Placed)] == ["y", ["b"]]
    scene.leave("b")
    assert lender_of(scene.cycle(), "c") == "y"


def test_a_virtual_cluster_borrows_within_its_limit() -> None:
    scene = a_scene(borrowing={"": 4})
    scene.asks(borrower("a"))
    decided = scene.asks(borrower("b"), borrower("c"))
    assert of(decided, Placed) == ["b"]
    scene.leave("a")
    decided = scene.cycle()
    assert of(decided, Upgraded) == ["b"] or of(decided, Placed) == ["c"]


def test_a_limit_below_what_is_lent_holds_back_no_other_gpu_type() -> None:
    owns = owning(("rack/node", 2), ("k80-node", 1))
    cells = [*RACKS, PhysicalCell("k80-node", name="m0")]
    scene = Scene(config(cells, x=owning(), y=owns))
    scene.asks(borrower("a", pods=2, gpu_types=("v100",)))
    less = replace(owns, lending_limit={"v100": 4})
    scene.core.change(config(cells, x=owning(), y=less), scene.now)
    assert lender_of(scene.asks(borrower("b", 2, gpu_types=("k80",))), "b") == "y"


def test_a_limit_of_none_lends_nothing() -> None:
    scene = a_scene(lending={"": 0})
    scene.asks(gang("full", "z", 4), borrower("a"))
    assert of(scene.asks(borrower("b")), Placed) == []


def test_a_gang_larger_than_its_own_quota_borrows_what_another_has() -> None:
    assert lender_of(a_scene().asks(borrower("large", 4, pods=2)), "large") == "y"


def test_pinned_cells_are_not_borrowed() -> None:
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack/node", 2))))
    assert of(scene.asks(borrower("p", pin="lab")), Refused) == ["p"]


def elastic(name: str, least: int, most: int, **more: object) -> Gang:
    """One of ``x`` that takes whole machines."""
    pods = tuple(f"p{number}" for number in range(most))
    roles = (Role(Kind(4), pods, "p", least),)
    return replace(borrower(name, **more), roles=roles)


def test_an_elastic_gang_grows_by_what_others_lend_and_shrinks_first() -> None:
    scene = a_scene()
    decided = scene.asks(elastic("e", 1, 3))
    assert lender_of(decided, "e") is None
    grown = [each for each in decided if isinstance(each, Grown)]
    assert [each.lender for each in grown] == ["y", "y"]
    decided = scene.asks(gang("own", "y", 4, pods=2))
    assert (len(of(decided, Shrunk)), of(decided, Preempted)) == (2, [])


def test_an_elastic_gang_may_begin_on_a_loan() -> None:
    scene = a_scene()
    scene.asks(borrower("a"))
    decided = scene.asks(elastic("e", 2, 4))
    assert lender_of(decided, "e") == "y"
    assert [each.lender for each in decided if isinstance(each, Grown)] == ["z"]
    own = scene.asks(gang("own", "z", 4))
    assert (of(own, Shrunk), of(own, Preempted)) == (["e"], [])
    own = scene.asks(gang("more", "y", 4))
    assert (of(own, Shrunk), of(own, Preempted)) == ([], ["e"])


def test_what_a_loan_grows_by_is_of_the_same_loan() -> None:
    scene = a_scene()
    scene.asks(borrower("a"))
    scene.asks(borrower("b"))
    scene.core.grow("b", (Role(Kind(4), ("q0",), "q"),))
    (grown,) = scene.cycle()
    assert isinstance(grown, Grown)
    assert grown.lender == "y"
    scene.core.grow("b", (Role(Kind(4), ("r0",), "r"),))
    assert code_of(scene.cycle(), "b") == "quota"
    assert scene.core.questions.reason_of("b").numbers["lender"] == "y"


def test_who_grows_is_not_awaited_for_it() -> None:
    scene = a_scene()
    scene.asks(borrower("a"), gang("full", "z", 4))
    scene.asks(borrower("b"))
    scene.asks(gang("own", "y", 4))
    scene.core.grow("b", (Role(Kind(4), ("q0",), "q"),))
    scene.cycle()
    assert [end.gang for end in scene.core.questions.counterfactual("b").ends.gangs] == ["own"]


def test_who_may_borrow_is_answered_that_nobody_lends() -> None:
    scene = a_scene(lending={"": 0})
    scene.asks(gang("full", "z", 4), borrower("a"))
    (told,) = [each for each in scene.asks(borrower("b")) if isinstance(each, Deferred)]
    assert told.reason.text.endswith("No other virtual cluster lends it room.")
    assert scene.core.questions.reason_of("b") == told.reason


def test_nobody_is_thought_away_for_more_of_a_loan() -> None:
    """Least of all the gang itself, which is below all others there."""
    scene = Scene(config(policy=Policy(is_strict=True), x=owning(), y=owning(("rack/node", 1))))
    scene.asks(borrower("b"))
    scene.asks(borrower("first", priority=1))
    scene.core.grow("b", (Role(Kind(2), ("q0",), "q"),))
    assert code_of(scene.cycle(), "b") == "quota"
    assert scene.core.drifts() == []


def test_it_goes_on_after_a_restart() -> None:
    scene, anew = a_scene(), a_scene()
    scene.asks(borrower("a"), elastic("e", 1, 2))
    for name in ("a", "e"):
        anew.core.restore(scene.core.exported(name), scene.now)
        assert anew.core.exported(name) == scene.core.exported(name)
    for each in (scene, anew):
        each.now = 9.0
        each.core.checked = each.asks(gang("own", "y", 4, pods=2))
    assert scene.core.checked == anew.core.checked


def test_a_lender_that_owns_less_keeps_what_its_own_gangs_have() -> None:
    """By a change those who borrow lose their cells first."""
    scene = a_scene()
    scene.asks(gang("own", "y", 4), borrower("a"), borrower("b", priority=9))
    less = config(x=owning(), y=owning(("rack/node", 1)), z=owning(("rack/node", 1)))
    scene.core.change(less, scene.now)
    assert set(of(scene.cycle(), Downgraded)) == {"a", "b"} or scene.core.exported("own").cells
    assert scene.core.exported("own").lender is None
    assert scene.core.exported("b").lender is None


def test_kept_cells_are_not_lent_beyond_the_time() -> None:
    scene = Scene(
        config(policy=Policy(is_backfilling=True), x=owning(), y=owning(("rack/node", 4)))
    )
    scene.asks(gang("runs", "y", 4, pods=2, expected_s=100.0))
    decided = scene.asks(gang("large", "y", 4, pods=4), borrower("b"))
    assert of(decided, Placed) == []  # what is idle is kept for it, from this very cycle on
    assert of(scene.asks(borrower("c")), Placed) == []


def test_of_a_strict_order_nobody_passes_by_a_loan() -> None:
    scene = Scene(config(policy=Policy(is_strict=True), x=owning(), y=owning(("rack/node", 4))))
    decided = scene.asks(borrower("large", 4, pods=4, submitted_at=0.0))
    assert lender_of(decided, "large") == "y"
    scene.asks(borrower("next", 4, pods=4, submitted_at=1.0))
    scene.core.release_pod("large", "p0")
    assert of(scene.asks(borrower("small", 4, submitted_at=2.0)), Placed) == []


def test_who_may_not_borrow_before_others_is_not_told_that_nobody_lends() -> None:
    half = owning(("rack/node", 2))
    scene = Scene(config(policy=Policy(is_strict=True), x=half, y=half))
    scene.asks(gang("a", "x", 4))
    scene.asks(gang("large", "x", 4, pods=2), borrower("b", submitted_at=1.0))
    told = scene.core.questions.reason_of("b")
    assert (told.code, told.text) == ("order", "Nobody may pass large, which comes before it.")
    scene.asks(borrower("d", pods=2, submitted_at=2.0))
    told = scene.core.questions.reason_of("d")
    assert (told.code, "lends" in told.text) == ("quota", False)
