"""What never happens, whatever is asked for and whatever breaks; each looked at by itself."""

from collections import Counter
from collections.abc import Callable

import pytest
from core_door import CoreDoor
from histories import history
from oracle.private import fits_in_private
from oracle.state import spare
from random_clusters import Traits
from runs import Run
from scheduler.domain.core.model import Grown, Placed
from seeds import how_many

SEEDS = how_many(20, deep=100)
Watch = Callable[[Run], None]


def through(first: int, watch: Watch, traits: Traits) -> None:
    """Let histories happen, and look after each cycle."""
    for seed in range(first, first + SEEDS):
        try:
            history(seed, CoreDoor, traits, watch=watch)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)


def no_gpu_is_given_twice(run: Run) -> None:
    used = Counter(
        (place.node, gpu)
        for name in run.names()
        for place in run.started_places(name)
        for gpu in place.gpus
    )
    assert max(used.values(), default=0) <= 1, used.most_common(3)


def gangs_are_whole(run: Run) -> None:
    for decision in run.latest:
        if isinstance(decision, Placed):
            wanted = {pod for role in run.asked[decision.gang].roles for pod in role.pods}
            assert wanted == {pod.pod for pod in decision.pods}, decision
        if isinstance(decision, Grown):
            wanted = {pod for role in run.grown[decision.gang] for pod in role.pods}
            assert wanted == {pod.pod for pod in decision.pods}, decision


def no_virtual_cluster_has_more_cells_than_it_owns(run: Run) -> None:
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


def what_is_promised_can_be_had(run: Run) -> None:
    left = spare(run.state.hardware, run.state.bound())
    assert min(left.values()) >= 0, left


def test_gangs_are_whole_on_gpus_of_their_own_and_in_their_quota() -> None:
    def watch(run: Run) -> None:
        no_gpu_is_given_twice(run)
        gangs_are_whole(run)
        no_virtual_cluster_has_more_cells_than_it_owns(run)
        what_is_promised_can_be_had(run)

    through(1000, watch, Traits(judges="", restarts=0.0))


def test_safety_no_guaranteed_gang_that_fits_its_virtual_cluster_waits() -> None:
    def watch(run: Run) -> None:
        for gang in run.state.waiting.values():
            assert not fits_in_private(run.state, gang), gang

    through(5000, watch, Traits(judges="", restarts=0.0, has_faults=False))
