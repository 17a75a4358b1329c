"""What never happens, whatever is asked for and whatever breaks; each looked at by itself."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from core_door import AGE_FIRST, POLICIES, CoreDoor, door
from histories import history
from oracle.private import fits_in_private
from oracle.state import spare
from random_clusters import Traits
from runs import Run
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.hardware import Hardware
from scheduler.domain.core.model import Decision, Grown, Placed, Reserved

SEEDS = 15
Watch = Callable[[Run], None]


def through(first: int, watch: Watch, traits: Traits | None = None) -> None:
    """Let histories happen, and look after each cycle."""
    for seed in range(first, first + SEEDS):
        try:
            history(seed, CoreDoor, traits or Traits(judges="", restarts=0.0), watch=watch)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)


def test_no_gpu_is_given_twice() -> None:
    def watch(run: Run) -> None:
        used = Counter(
            (place.node, gpu)
            for name in run.names()
            for place in run.started_places(name)
            for gpu in place.gpus
        )
        assert max(used.values(), default=0) <= 1, used.most_common(3)

    through(1000, watch)


def test_gangs_are_whole() -> None:
    def watch(run: Run) -> None:
        for decision in run.latest:
            if isinstance(decision, Placed):
                wanted = {pod for role in run.asked[decision.gang].roles for pod in role.pods}
                assert wanted == {pod.pod for pod in decision.pods}, decision
            if isinstance(decision, Grown):
                wanted = {pod for role in run.grown[decision.gang] for pod in role.pods}
                assert wanted == {pod.pod for pod in decision.pods}, decision

    through(2000, watch)


def test_no_virtual_cluster_has_more_cells_than_it_owns() -> None:
    def watch(run: Run) -> None:
        bound = {
            (run.core.exported(name).gang.virtual_cluster, use)
            for name in run.names()
            for use in run.core.exported(name).cells
        }
        counts = Counter((vc, use.quota) for vc, use in bound)
        for (vc, quota), count in counts.items():
            owned = run.state.hardware.quotas(vc)[quota]
            owned += run.state.hardware.pin_owner.get(quota) == vc
            pins = len(run.config.virtual_clusters[vc].pins)
            assert count <= (owned or pins), (vc, quota, count)

    through(3000, watch)


def test_what_is_promised_can_be_had_at_any_time() -> None:
    def watch(run: Run) -> None:
        left = spare(run.state.hardware, run.state.bound())
        assert min(left.values()) >= 0, left

    through(4000, watch)


QUIET = {"is_lazy": True, "min_run_s": 30.0, "preemptions_per_hour": 2}

QUARTERS = (0, 0, 1, 2)
"""Of a machine's CPU that are nobody's now and then."""


def something_blocked(core: Cluster, now: float) -> None:
    """CPU on some machines is nobody's, or is free again: the same at the same time."""
    chance = Random(str(now))
    for name, machine in sorted(core.hardware.machines.items()):
        most = dict(zip(machine.sort.names, machine.sort.capacity, strict=True)).get("cpu")
        if most is not None and chance.random() < 0.3:
            core.nodes.block(name, amounts={"cpu": most * chance.choice(QUARTERS) // 4})


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, AGE_FIRST, QUIET, QUIET | POLICIES[1]],
    ids=["plain", "backfill", "usual", "strict", "age", "quiet", "quiet and backfill"],
)
@pytest.mark.parametrize("is_large", [False, True])
def test_what_the_core_remembers_changes_no_decision(
    policy: dict[str, object], is_large: bool
) -> None:
    """A core decides the same that remembers nothing: neither who can't be helped, nor what a place
    would cost, nor what could be had there, nor what will be free when those have left who leave
    already. With reservations it may differ for whom cells are kept between, and in which order.
    """
    plain = door(policy)

    class Usual(plain):  # type: ignore[misc, valid-type]
        is_blocking = False

        def decide(self, now: float) -> Sequence[Decision]:
            if self.is_blocking:
                something_blocked(self.core, now)
            return super().decide(now)  # type: ignore[no-any-return]

    class Forgetful(Usual):
        def decide(self, now: float) -> Sequence[Decision]:
            self.core.prices.clear()
            self.core.attainable.clear()
            self.core.hardware.other = None
            self.core.queue.added.update(dict.fromkeys(self.core.queue.lines.values()))
            return super().decide(now)

    for seed in range(6045, 6045 + SEEDS):
        Usual.is_blocking = seed % 2 == 0
        share = 0.5 if seed % 3 == 0 else 0.08
        traits = Traits(judges="", restarts=0.0, is_large=is_large, without_gpus=share)
        found = [history(seed, each, traits).decisions for each in (Usual, Forgetful)]
        if policy.get("is_backfilling"):
            found = [[d for d in each if not isinstance(d, Reserved)] for each in found]
        assert repr(found[0]) == repr(found[1]), f"seed {seed}"


@pytest.mark.parametrize(
    "policy", [*POLICIES[1:], AGE_FIRST], ids=["backfill", "usual", "strict", "age"]
)
@pytest.mark.parametrize("is_large", [False, True])
def test_what_is_remembered_of_kept_cells_changes_no_decision(
    policy: dict[str, object], is_large: bool
) -> None:
    """Neither who was looked at for them in vain, nor in which state all was as it should be."""
    usual = door(policy)

    class Forgetful(usual):  # type: ignore[misc, valid-type]
        def decide(self, now: float) -> Sequence[Decision]:
            self.core.reservations.looked.clear()
            self.core.reservations.full.clear()
            self.core.queue.ahead.clear()
            for live in self.core.gangs.values():
                live.unplanned = None
            return super().decide(now)  # type: ignore[no-any-return]

    traits = Traits(judges="", restarts=0.0, is_large=is_large)
    for seed in range(6170, 6170 + SEEDS):
        found = [history(seed, each, traits).decisions for each in (usual, Forgetful)]
        assert repr(found[0]) == repr(found[1]), f"seed {seed}"


def free_leaves(hardware: Hardware) -> dict[tuple[str, int], int]:
    """How many are free on each node: of each owner, and in no bound cell."""
    found: dict[tuple[str, int], int] = {}
    for state in hardware.states:
        number, free = state.slot.number, state.usable & ~hardware.used(state)
        for owner, mask in state.bound.items():
            found[owner, number] = (mask & free & ~state.charged).bit_count()
        if space := hardware.spaces[number][number]:
            found["", number] = (space & free).bit_count()
    return found


def indexed(hardware: Hardware) -> dict[tuple[str, int], int]:
    """The same, as the index has it."""
    index = hardware.index
    regions = [(o, r) for o, of_owner in index.regions.items() for r in of_owner.values()]
    regions += [("", region) for region in index.empty.values()]
    return {
        (owner, number): tag.count
        for owner, region in regions
        for number, tag in region.tags.items()
    }


def test_the_index_says_what_is_free_now_and_when_those_have_left_who_leave() -> None:
    def watch(run: Run) -> None:
        hardware = run.core.core.hardware  # type: ignore[attr-defined]
        assert indexed(hardware) == free_leaves(hardware)
        with hardware.ahead():
            assert indexed(hardware) == free_leaves(hardware)

    through(7000, watch, Traits(judges="", restarts=0.0, is_large=True))


def test_safety_no_guaranteed_gang_that_fits_its_virtual_cluster_waits() -> None:
    def watch(run: Run) -> None:
        for gang in run.state.waiting.values():
            assert not fits_in_private(run.state, gang), gang

    through(5000, watch, Traits(judges="", restarts=0.0, has_faults=False))
