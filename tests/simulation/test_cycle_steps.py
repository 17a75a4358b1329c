"""One cycle of the core: who is tried, when, and what that costs others."""

from dataclasses import replace

from scenes import FREE, Scene, config, gang, owning
from scheduler.domain.core.audit import drifts
from scheduler.domain.core.config import ClusterConfig, NodeLimits, PhysicalCell, Policy
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Gang,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Reserved,
    Restored,
)
from scheduler.domain.core.nodes import Place

KEEPING = replace(FREE, is_backfilling=True, assumed_s=1000.0)
ONE = (PhysicalCell("old-node", name="n0"),)
TWO = (PhysicalCell("old-node", name="n0"), PhysicalCell("old-node", name="n1"))


class Story:
    """A core to which things happen one by one, and the time."""

    def __init__(self, configuration: ClusterConfig) -> None:
        self.core = Core(configuration)
        self.now = 0.0

    def cycle(self, after_s: float = 1.0) -> list[Decision]:
        """What the next cycle decides. The state is right after it."""
        self.now += after_s
        decisions = self.core.cycle(self.now)
        assert list(drifts(self.core.state, [*self.core.workloads()])) == []
        return decisions

    def asks(self, *gangs: Gang) -> list[Decision]:
        """What is decided in the cycle that sees these."""
        for one in gangs:
            self.core.request(one)
        return self.cycle()

    def leaves(self, *names: str) -> list[Decision]:
        """What is decided when gangs have ended."""
        for name in names:
            self.core.release(name)
        return self.cycle()


def started(decisions: list[Decision]) -> list[str]:
    """Gangs that start, in order."""
    return [each.gang for each in decisions if isinstance(each, Placed)]


def of_type(decisions: list[Decision], kind: type[Decision]) -> list[str]:
    """Gangs with a decision of this type."""
    return [each.gang for each in decisions if isinstance(each, kind)]


def test_a_gang_with_a_reservation_is_tried_behind_an_older_one_of_its_class() -> None:
    story = Story(config(TWO, policy=KEEPING, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2, limit_s=10), gang("b", "x", 2, limit_s=1000))
    assert of_type(story.asks(gang("young", "x", 2, submitted_at=5, limit_s=500)), Reserved)
    story.asks(gang("old", "x", 2, submitted_at=1, limit_s=500))
    assert started(story.leaves("a")) == ["young"]


def test_a_nomination_ends_where_foreign_pods_took_what_it_waits_for() -> None:
    limits = {"n0": NodeLimits(cpu=4)}
    story = Story(config(ONE, limits, x=owning(("old-node", 1))))
    story.asks(gang("low", "x", 2, priority=-1, cpu=2))
    assert of_type(story.asks(gang("high", "x", 2, cpu=4)), Preempted) == ["low"]
    story.core.nodes.block("n0", (), {"cpu": 2}, ())
    assert of_type(story.leaves("low"), PreemptionCancelled) == ["high"]
    story.core.nodes.block("n0", (), {}, ())
    assert started(story.cycle()) == ["high"]


def test_none_passes_another_where_the_order_is_strict() -> None:
    cells = (*TWO, PhysicalCell("old-node", name="n2"))
    story = Story(config(cells, policy=replace(FREE, is_strict=True), x=owning(("old-node", 3))))
    story.asks(gang("a", "x", 2))
    waiting = gang("large", "x", 2, 3), gang("small", "x", 2, submitted_at=1)
    assert started(story.asks(*waiting, gang("idle", "x", 2, priority=-1))) == ["idle"]
    assert story.cycle() == []
    assert started(story.leaves("large")) == ["small"]


def test_only_the_first_may_borrow_where_the_order_is_strict() -> None:
    policy = replace(FREE, is_strict=True)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 1)), y=owning(("old-node", 1))))
    story.asks(gang("a", "x", 2))
    large = gang("large", "x", 2, 2, is_borrowing=True)
    assert started(story.asks(large, gang("b", "x", 2, submitted_at=1, is_borrowing=True))) == []
    assert started(story.leaves("large")) == ["b"]


def test_ports_are_the_lowest_that_are_free() -> None:
    limits = {"n0": NodeLimits(ports=(20_000, 20_003))}
    story = Story(config(ONE, limits, x=owning(("old-node", 1))))
    story.core.nodes.block("n0", (), {}, (20_001,))
    (first,) = story.asks(gang("a", "x", 1, ports=2))
    assert isinstance(first, Placed)
    assert first.pods[0].ports == (20_000, 20_002)
    assert story.core.exported("a").places == first.pods
    (second,) = story.asks(gang("b", "x", 1, ports=1))
    assert isinstance(second, Placed)
    assert second.pods[0].ports == (20_003,)


def test_a_preemptor_gets_its_ports_when_it_starts() -> None:
    limits = {"n0": NodeLimits(ports=(20_000, 20_001))}
    story = Story(config(ONE, limits, x=owning(("old-node", 1))))
    story.asks(gang("low", "x", 2, priority=-1, ports=2))
    story.asks(gang("high", "x", 2, ports=2))
    (placed,) = story.leaves("low")
    assert isinstance(placed, Placed)
    assert placed.pods[0].ports == (20_000, 20_001)


def test_a_gang_borrows_before_opportunistic_gangs_take_the_place() -> None:
    story = Story(config(ONE, x=owning(), y=owning(("old-node", 1))))
    borrower = gang("borrower", "x", 2, is_borrowing=True, submitted_at=1)
    assert started(story.asks(gang("idle", "x", 2, priority=-1), borrower)) == ["borrower"]


def test_a_gang_without_gpus_takes_no_cpu_of_reserved_cells() -> None:
    limits = {"n0": NodeLimits(cpu=4), "n1": NodeLimits(cpu=4)}
    story = Story(config(TWO, limits, KEEPING, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2, cpu=4))
    large = gang("large", "x", 2, 2, cpu=4)
    assert of_type(story.asks(large), Reserved) == ["large"]
    assert started(story.asks(gang("cpu", "x", 0, cpu=1, submitted_at=1))) == []
    assert started(story.leaves("a")) == ["large"]


def test_a_backfilled_gang_that_overstays_leaves_for_the_gang_with_the_reservation() -> None:
    policy = replace(KEEPING, min_run_s=500.0)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2, expected_s=100))
    assert of_type(story.asks(gang("large", "x", 2, 2)), Reserved) == ["large"]
    assert started(story.asks(gang("small", "x", 2, expected_s=50, submitted_at=1))) == ["small"]
    assert story.core.exported("small").passed == "large"
    assert of_type(story.leaves("a"), Preempted) == []
    assert of_type(story.cycle(40), Preempted) == []
    assert of_type(story.cycle(10), Preempted) == ["small"]
    assert started(story.leaves("small")) == ["large"]


def test_a_restored_backfilled_gang_may_overstay_no_longer_than_before() -> None:
    story = Story(config(TWO, policy=KEEPING, x=owning(("old-node", 2))))
    small = gang("small", "x", 2, expected_s=50, submitted_at=1)
    place = PodPlace("p0", "n0", (0, 1))
    story.core.restore(Restored(small, (place,), started_at=0.0, passed="large"))
    assert of_type(story.asks(gang("large", "x", 2, 2)), Reserved) == ["large"]
    assert of_type(story.cycle(49.5), Preempted) == ["small"]


def test_a_reservation_waits_for_the_end_of_a_protection() -> None:
    policy = replace(KEEPING, min_run_s=100.0)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2), gang("b", "x", 2))
    decisions = story.asks(gang("large", "x", 2, 2, priority=1))
    assert [each.starts_at for each in decisions if isinstance(each, Reserved)] == [101.0]
    assert set(of_type(story.cycle(99), Preempted)) == {"a", "b"}


def test_gangs_of_a_group_are_near_one_another() -> None:
    story = Story(config(x=owning(("rack/node", 4))))
    story.asks(gang("first", "x", 4), gang("second", "x", 4, submitted_at=1))
    story.asks(gang("a", "x", 4, job="j", group="g"))
    story.leaves("first")
    (placed,) = story.asks(gang("b", "x", 4, job="j", group="g"))
    assert isinstance(placed, Placed)
    assert {each.slot.rack for each in places_of(story, "a")} == {1}
    assert placed.pods[0].node == "n3"


def a_lost_node() -> Story:
    """``j-0`` ran on n0 and n1, which is lost; ``full`` is on n2, and ``w`` waits."""
    cells = (*TWO, PhysicalCell("old-node", name="n2"))
    story = Story(config(cells, x=owning(("old-node", 3))))
    story.asks(gang("j-0", "x", 2, 2, job="j"), gang("full", "x", 2), gang("w", "x", 2))
    story.core.nodes.set_node_health("n1", False)
    story.core.requeue("j-0", until=60.0)
    assert started(story.cycle()) == []
    return story


def test_the_next_attempt_keeps_the_healthy_part_of_its_place_and_is_first() -> None:
    story = a_lost_node()
    story.asks(gang("j-1", "x", 2, 2, job="j", submitted_at=5, follows="j-0"))
    assert started(story.leaves("full")) == ["j-1"]
    assert {place.slot.node.name for place in places_of(story, "j-1")} == {"n0", "n2"}


def test_pods_go_back_to_their_nodes_though_others_fit_better() -> None:
    cells = (*TWO, PhysicalCell("old-node", name="n2"))
    story = Story(config(cells, x=owning(("old-node", 3))))
    story.asks(gang("first", "x", 2), gang("j-0", "x", 2, job="j", submitted_at=1))
    story.leaves("first")
    story.core.requeue("j-0", until=60.0)
    (placed,) = story.asks(gang("j-1", "x", 2, job="j", follows="j-0"))
    assert isinstance(placed, Placed)
    assert placed.pods[0].node == "n1"


def test_what_is_kept_for_a_next_attempt_is_free_when_the_time_has_passed() -> None:
    story = a_lost_node()
    assert started(story.cycle(30)) == []
    assert started(story.cycle(30)) == ["w"]


def test_no_gang_backfills_what_is_kept_for_a_next_attempt() -> None:
    story = a_lost_node()
    short = gang("limited", "x", 2, limit_s=5), gang("short", "x", 2, expected_s=5)
    assert started(story.asks(*short)) == []
    story.asks(gang("j-1", "x", 2, 2, job="j", follows="j-0"))
    assert started(story.asks(gang("late", "x", 2, limit_s=5))) == []
    assert started(story.leaves("full")) == ["j-1"]


def places_of(story: Story, name: str) -> tuple[Place, ...]:
    """Where a gang is."""
    return story.core.gangs[name].workload.places


def test_no_more_gangs_are_downgraded_than_serve() -> None:
    cells = [PhysicalCell("old-node", name=f"n{n}") for n in range(16)]
    policy = replace(FREE, is_lazy=True)
    story = Story(config(cells, policy=policy, x=owning(("old-node", 15))))
    story.asks(*(gang(f"low{n:02}", "x", 1) for n in range(30)))
    assert len(of_type(story.asks(gang("high", "x", 2, priority=1)), Downgraded)) == 2


def test_no_nominated_gang_loses_its_place_while_the_budget_is_used_up() -> None:
    policy = replace(FREE, preemptions_per_hour=1)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2), gang("b", "x", 2))
    assert of_type(story.asks(gang("mid", "x", 2, priority=1)), Preempted)
    decisions = story.asks(gang("high", "x", 2, priority=2))
    assert of_type(decisions, PreemptionCancelled) == []
    assert of_type(decisions, Deferred) == ["high"]
    assert of_type(story.cycle(3600), Preempted)


def test_a_budget_that_is_nearly_used_up_is_kept() -> None:
    policy = replace(FREE, preemptions_per_hour=1)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 2))))
    story.asks(gang("a", "x", 2), gang("b", "x", 2))
    assert of_type(story.asks(gang("large", "x", 2, 2, priority=1)), Preempted) == []


def test_a_preemption_counts_for_an_hour() -> None:
    policy = replace(FREE, preemptions_per_hour=1)
    story = Story(config(ONE, policy=policy, x=owning(("old-node", 1))))
    story.asks(gang("a", "x", 2))
    story.asks(gang("b", "x", 2, priority=1))
    story.leaves("a")
    assert of_type(story.asks(gang("c", "x", 2, priority=2)), Preempted) == []
    assert of_type(story.cycle(3600), Preempted) == ["b"]


def test_a_restored_gang_uses_the_cluster_from_then_on() -> None:
    policy = Policy(is_backfilling=False, half_life_s=100.0)
    story = Story(config(TWO, policy=policy, x=owning(("old-node", 2))))
    story.now = 1e6 - 20
    story.asks(by("bob", gang("b", "x", 1)))
    story.now, place = 1e6, PodPlace("p0", "n1", (0,))
    story.core.restore(Restored(by("ann", gang("a", "x", 1)), (place,), started_at=1e6), 1e6)
    story.now += 10
    older, younger = gang("c", "x", 1, submitted_at=2), gang("d", "x", 1, submitted_at=1)
    assert started(story.asks(by("ann", older), by("bob", younger))) == ["c", "d"]


def by(user: str, one: Gang) -> Gang:
    """A gang of a user."""
    return replace(one, user=user)


def test_pods_of_one_kind_get_gpus_of_one_type_also_by_preemption() -> None:
    cells = [
        PhysicalCell(f"{leaf}-node", name=f"{leaf}{n}") for leaf in ("old", "k80") for n in (0, 1)
    ]
    scene = Scene(config(cells, x=owning(("old-node", 2), ("k80-node", 2)), y=owning()))
    for node in ("old0", "k800", "old1", "k801"):
        scene.now += 100.0
        there = frozenset({node})
        scene.places(gang(node, "y", 2, priority=-1, allowed_nodes=there))
    victims = [d.gang for d in scene.asks(gang("asks", "x", 2, pods=2)) if isinstance(d, Preempted)]
    assert sorted(victims) == ["k800", "k801"]
