"""Reasons of the core: codes and numbers, of waits and of preemptions."""

from dataclasses import replace

from scenes import RACKS, config, gang, owning
from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import Decision, Deferred, Gang, Placed, Preempted, Reason

FREE = Policy(order_by=("priority", "age"), is_backfilling=False)
KEEPING = Policy(is_backfilling=True, assumed_s=1_000.0, max_pass_s=500.0)


class Scene:
    """A core, and the time."""

    def __init__(self, configuration: ClusterConfig) -> None:
        self.core = Core(configuration)
        self.now = 0.0

    def asks(self, *gangs: Gang) -> list[Decision]:
        """What is decided in the cycle that sees these."""
        for one in gangs:
            self.core.request(one)
        self.now += 1.0
        return self.core.cycle(self.now)

    def reason(self, one: Gang) -> Reason:
        """Why a gang has to wait."""
        (told,) = [e for e in self.asks(one) if isinstance(e, Deferred) and e.gang == one.id]
        assert self.core.questions.reason_of(one.id) == told.reason
        return told.reason


def a_scene(policy: Policy = FREE) -> Scene:
    """Four nodes of four GPUs, all of one virtual cluster."""
    return Scene(config(policy=policy, x=owning(("rack/node", 4))))


def preemptions(decisions: list[Decision]) -> dict[str, Reason]:
    """Why gangs have to leave."""
    return {each.gang: each.reason for each in decisions if isinstance(each, Preempted)}


def ends_of(scene: Scene, waiting: str) -> list[str]:
    """The gangs that must end for one that waits."""
    answer = scene.core.questions.counterfactual(waiting)
    assert answer is not None
    return sorted(each.gang for each in answer.ends.gangs) if answer.ends else []


def test_quota_has_the_cells_that_are_wanted_and_left() -> None:
    scene = a_scene()
    scene.asks(gang("three", "x", 4, pods=3))
    reason = scene.reason(gang("two", "x", 4, pods=2))
    assert (reason.code, reason.numbers["cellsWanted"]) == ("quota", 8)
    assert reason.numbers["cellsLeft"] == 4
    scene.core.release("three")
    scene.asks(gang("four", "x", 4, pods=4, priority=1))
    reason = scene.core.questions.reason_of("two")
    assert reason is not None
    assert reason.numbers["cellsLeft"] == 0, "it is told as it is now"


def test_quota_of_a_pin_names_it() -> None:
    pinned = (RACKS[0], replace(RACKS[1], pin="mine"))
    scene = Scene(config(cells=pinned, x=owning(("rack", 1), pins=("mine",))))
    scene.asks(gang("one", "x", 4, pin="mine"))
    reason = scene.reason(gang("two", "x", 4, pods=2, pin="mine"))
    assert (reason.code, reason.numbers["pin"]) == ("quota", "mine")
    assert (reason.numbers["cellsWanted"], reason.numbers["cellsLeft"]) == (8, 4)


def test_a_gang_that_may_pass_nobody_is_told_of_the_first() -> None:
    scene = a_scene(Policy(is_strict=True))
    scene.asks(gang("half", "x", 4, pods=2))
    scene.asks(gang("large", "x", 4, pods=3))
    reason = scene.reason(gang("small", "x", 4))
    assert (reason.code, reason.numbers["for"]) == ("order", "large")
    assert scene.reason(gang("larger", "x", 4, pods=4)).code == "quota"


def test_health_counts_the_nodes_that_are_not() -> None:
    scene = a_scene()
    scene.core.nodes.set_node_health("n0", False)
    scene.core.nodes.cordon("n1")
    reason = scene.reason(gang("large", "x", 4, pods=3))
    assert (reason.code, reason.numbers["badNodes"]) == ("health", 2)
    answer = scene.core.questions.counterfactual("large")
    assert answer is not None
    assert answer.nodes == ("n0", "n1"), "of its place if all were"


def test_who_waits_when_all_nodes_are_well_again_is_told_why_anew() -> None:
    """Though it was not tried: others had taken the node."""
    scene = a_scene()
    scene.core.nodes.cordon("n3")
    scene.asks(gang("large", "x", 4, pods=3))
    scene.asks(gang("first", "x", 2), gang("second", "x", 2), gang("whole", "x", 4, pods=1))
    scene.core.nodes.uncordon("n3")
    decided = scene.asks()
    assert [each.gang for each in decided if isinstance(each, Placed)] == ["first", "second"]
    told = {each.gang: each.reason.code for each in decided if isinstance(each, Deferred)}
    assert told == {"whole": "quota"}


def test_a_cordoned_node_without_gpus_is_not_healthy_either() -> None:
    limits = {name: NodeLimits(cpu=1) for name in ("n0", "n1", "n2", "n3")}
    limits["m0"] = NodeLimits(cpu=8)
    scene = Scene(config(nodes=limits, x=owning(("rack/node", 4))))
    scene.core.nodes.cordon("m0")
    reason = scene.reason(gang("cpus", "x", 0, cpu=8, priority=-1))
    assert (reason.code, reason.numbers["badNodes"]) == ("health", 1)


def test_shape_and_resource_are_told_apart() -> None:
    limits = {name: NodeLimits(cpu=8) for name in ("n0", "n1", "n2", "n3")}
    scene = Scene(config(nodes=limits, x=owning(("rack/node", 4))))
    scene.asks(*(gang(f"g{n}", "x", 1, cpu=2, priority=-1) for n in range(4)))
    scene.asks(*(gang(f"h{n}", "x", 2, cpu=6, priority=-1) for n in range(4)))
    assert scene.reason(gang("cpu", "x", 1, cpu=3, priority=-1)).code == "resource"
    assert scene.reason(gang("gpus", "x", 4, cpu=1, priority=-1)).code == "shape"


def test_a_question_counts_what_is_free_now() -> None:
    """Though nobody looks for a place for the gang again: what others take helps it no more."""
    scene = a_scene()
    scene.asks(*(gang(f"g{n}", "x", 1, allowed_nodes=frozenset({f"n{n}"})) for n in range(4)))
    told = scene.reason(gang("waits", "x", 4, priority=-1))
    assert (told.numbers["gpusFree"], told.numbers["gpusFreeOnOneNode"]) == (12, 3)
    scene.asks(gang("takes", "x", 3, pods=2))
    assert scene.core.questions.reason_of("waits") == told
    now = scene.core.questions.reason_now("waits")
    assert now is not None
    assert (now.code, now.numbers["gpusFree"]) == ("shape", 6)


def test_idle_gpus_of_protected_gangs_are_not_said_to_lie_apart() -> None:
    cells, limits = (PhysicalCell("node", name="n0"),), {"n0": NodeLimits(cpu=16)}
    policy = Policy(min_run_s=100.0, is_backfilling=False)
    scene = Scene(config(cells, limits, policy, x=owning(("node", 1))))
    scene.asks(*(gang(f"etl{n}", "x", 0, cpu=4, is_lazy=False) for n in range(4)))
    reason = scene.reason(gang("trains", "x", 1, priority=1))
    assert (reason.code, reason.text) == (
        "shape",
        "1 pod with 1 GPU: 4 such GPUs are free, at most 4 on one node, but not in cells that x may"
        " have. 4 gangs of lower priority are protected from it, until 101 at the least.",
    )


def test_reserved_cells_are_told_of_with_their_gang_and_time() -> None:
    scene = a_scene(KEEPING)
    scene.asks(gang("half", "x", 4, pods=2, expected_s=100.0))
    scene.asks(gang("large", "x", 4, pods=4))
    reason = scene.reason(gang("small", "x", 4))
    assert (reason.code, reason.numbers["for"]) == ("reservation", "large")
    assert reason.numbers["startsAt"] == 101.0
    assert scene.core.questions.starts_at("large") == 101.0
    answer = scene.core.questions.counterfactual("small")
    assert answer is not None
    ends = answer.ends
    assert ends is not None
    assert ends.gangs == ()


def test_protected_gangs_are_counted() -> None:
    scene = a_scene(Policy(min_run_s=100.0, is_backfilling=False))
    scene.asks(*(gang(name, "x", 4) for name in "abcd"))
    reason = scene.reason(gang("high", "x", 4, priority=1))
    assert (reason.code, reason.numbers["protected"]) == ("shape", 4)
    assert reason.numbers["protectedUntil"] == 101.0


def test_preempting_counts_the_victims_and_says_by_when() -> None:
    scene = Scene(config(x=owning(("rack", 2)), y=owning()))
    scene.asks(*(gang(f"g{n}", "y", 4, priority=-1) for n in range(4)))
    decided = scene.asks(gang("late", "x", 4, pods=2, priority=1))
    victims = preemptions(decided)
    assert [reason.code for reason in victims.values()] == ["guarantee", "guarantee"]
    (told,) = [each for each in decided if isinstance(each, Deferred)]
    assert told.reason.code == "preempting"
    assert (told.reason.numbers["victims"], told.reason.numbers["until"]) == (2, 32.0)
    assert scene.core.questions.reason_of("late") == told.reason
    scene.core.release(next(iter(victims)))
    reason = scene.core.questions.reason_of("late")
    assert reason is not None
    assert reason.numbers["victims"] == 1


def test_an_answer_awaits_gangs_beside_their_cells() -> None:
    """``etl`` has no cells as ``trains`` has them all, and the CPU that ``large`` wants."""
    cells, limits = (PhysicalCell("node", name="n0"),), {"n0": NodeLimits(cpu=16)}
    scene = Scene(config(cells, limits, x=owning(("node", 1))))
    scene.asks(gang("trains", "x", 4, cpu=4))
    scene.asks(gang("etl", "x", 0, cpu=8))
    assert scene.reason(gang("large", "x", 4, cpu=16)).code == "quota"
    assert ends_of(scene, "large") == ["etl", "trains"]


def test_an_answer_awaits_gangs_that_have_yet_to_start() -> None:
    scene = Scene(config(nodes={"m0": NodeLimits(cpu=8)}, x=owning(("rack", 1))))
    only = frozenset({"m0"})
    scene.asks(gang("guest", "x", 0, cpu=8, priority=-1, allowed_nodes=only))
    assert preemptions(scene.asks(gang("first", "x", 0, cpu=8, allowed_nodes=only)))
    late = gang("late", "x", 0, cpu=8, priority=-1, allowed_nodes=only)
    assert scene.reason(late).code == "resource"
    assert ends_of(scene, "late") == ["first"]


def test_an_answer_says_that_ends_of_a_lenders_gangs_are_not_tried() -> None:
    scene = Scene(config(x=owning(("rack/node", 1)), y=owning(("rack/node", 2))))
    scene.asks(gang("own", "x", 4), gang("lender", "y", 4, pods=2))
    for name, is_borrowing, left_out in (("borrows", True, ["ends"]), ("fits", False, [])):
        scene.reason(gang(name, "x", 4, pods=1 + is_borrowing, is_borrowing=is_borrowing))
        answer = scene.core.questions.counterfactual(name)
        assert answer is not None
        assert (answer.ends is None, answer.left_out) == (is_borrowing, left_out)


def test_a_preemption_inside_a_virtual_cluster_has_both_priorities() -> None:
    scene = a_scene()
    scene.asks(gang("low", "x", 4, pods=4))
    reason = preemptions(scene.asks(gang("high", "x", 4, priority=2)))["low"]
    assert (reason.code, dict(reason.numbers)) == ("priority", {"priority": 0, "forPriority": 2})


def test_borrowed_capacity_is_reclaimed() -> None:
    scene = Scene(config(x=owning(("rack/node", 2)), y=owning(("rack/node", 2))))
    scene.asks(gang("own", "x", 4, pods=2))
    (placed,) = scene.asks(gang("borrows", "x", 4, pods=2, is_borrowing=True, is_lazy=False))
    assert isinstance(placed, Placed)
    assert placed.lender == "y"
    assert preemptions(scene.asks(gang("lender", "y", 4)))["borrows"].code == "reclaimed"


def test_a_drain_is_told_as_one() -> None:
    scene = a_scene()
    scene.asks(gang("runs", "x", 4))
    scene.core.nodes.drain("n0")
    assert preemptions(scene.asks())["runs"].code == "drain"


def test_what_can_never_start_waits_for_health_before_all_nodes_are_known() -> None:
    scene = a_scene()
    scene.core.is_settled = False
    reason = scene.reason(gang("huge", "x", 4, pods=9))
    assert reason.code == "health"
    assert "Not all nodes may be known yet." in reason.text


def test_who_waits_without_gpus_is_told_of_protected_gangs() -> None:
    scene = Scene(config(nodes={"m0": NodeLimits(cpu=8)}, x=owning(("rack", 1))))
    only = frozenset({"m0"})
    scene.asks(gang("low", "x", 0, cpu=8, min_run_s=100.0, allowed_nodes=only))
    reason = scene.reason(gang("high", "x", 0, cpu=8, priority=1, allowed_nodes=only))
    assert (reason.code, reason.numbers["protected"]) == ("resource", 1)


def test_who_would_wait_on_without_them_is_not_told_of_protected_gangs() -> None:
    scene = Scene(config(nodes={"m0": NodeLimits(cpu=8)}, x=owning(("rack", 1))))
    only = frozenset({"m0"})
    scene.asks(gang("low", "x", 0, cpu=2, min_run_s=100.0, allowed_nodes=only))
    scene.asks(gang("equal", "x", 0, cpu=5, priority=1, allowed_nodes=only))
    reason = scene.reason(gang("high", "x", 0, cpu=4, priority=1, allowed_nodes=only))
    assert (reason.code, reason.numbers.get("protected")) == ("resource", None)
