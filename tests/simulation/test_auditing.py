"""The books are right, whatever happens; and where they are made wrong, the gang is named."""

from collections.abc import Callable, Iterator

import pytest
from core_door import POLICIES, door
from histories import history
from random_clusters import Traits
from runs import Run
from scenes import Scene, config, gang, owning
from scheduler.domain.core.auditing import NOBODY_KNOWN, Drift, audit, audited, by_gang
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.config import Policy
from scheduler.domain.core.model import Gang, Kind, Role
from test_borrowing_properties import a_history

SEEDS = 15


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_the_books_are_right(number: int) -> None:
    def watch(run: Run) -> None:
        found = audited(run.core.core)  # type: ignore[attr-defined]
        assert not found, f"{run.now}: {[f'{each.gang}: {each.text}' for each in found]}"

    for seed in range(31000 + 1000 * number, 31000 + 1000 * number + SEEDS):
        traits = Traits(judges="", restarts=0.0 if number else 0.2, is_large=seed % 4 == 0)
        found = history(seed, door(POLICIES[number]), traits, watch=watch)
        assert not any("fails" in each for each in found.problems), (seed, found.problems)


def test_the_books_of_elastic_and_borrowing_gangs_are_right() -> None:
    lent = 0
    for seed in range(35000, 35000 + SEEDS):
        for cluster, _, now in a_history(seed):
            found = audited(cluster)
            assert not found, f"{seed} {now}: {[f'{each.gang}: {each.text}' for each in found]}"
            lent += len(cluster.charges.loans.gangs)
    assert lent > SEEDS


def a_scene() -> Scene:
    """Gangs of every sort: with cells, elastic, as a guest, told to leave, with cells kept."""
    policy = Policy(is_backfilling=True, assumed_s=1_000.0)
    scene = Scene(config(policy=policy, x=owning(("rack", 1)), y=owning(("rack/node", 1))))
    scene.asks(gang("plain", "x", 2), gang("guest", "y", 2, priority=-1))
    roles = (Role(Kind(2), ("p0", "p1"), "p", 1),)
    scene.asks(Gang("elastic", "x", "user", 0, roles), gang("other", "y", 4))
    scene.asks(gang("large", "x", 4, pods=2))
    core: Cluster = scene.core.core
    assert list(core.reservations.by_gang) == ["large"]
    assert core.extras["elastic"]
    assert not audited(core)
    return scene


def counted_twice(core: Cluster) -> None:
    live = core.gangs["plain"]
    core.charges.count(live, live.pods["p0"], 1)


def not_counted_at_its_end(core: Cluster) -> None:
    live = core.gangs["plain"]
    core.charges.count(live, live.pods["p0"], 1)
    core.release("plain")


def without_cells_unnoticed(core: Cluster) -> None:
    core.hardware.discharge(core.gangs["plain"].pods["p0"])


def another_rank_unnoticed(core: Cluster) -> None:
    core.gangs["plain"].rank = 7


def charged_on_another_node(core: Cluster) -> None:
    states = core.hardware.states
    here = core.gangs["plain"].pods["p0"].state
    other = next(state for state in states if state is not here and not state.charged)
    other.charged |= 1
    other.chargers["plain"] = 1


def a_ghost_uses_a_gpu(core: Cluster) -> None:
    state = next(state for state in core.hardware.states if ~state.held & state.slot.shape.full)
    free = ~state.held & state.slot.shape.full
    state.held |= free & -free
    state.holders["plain"] = state.holders.get("plain", 0) | (free & -free)


def a_user_of_a_cell_is_forgotten(core: Cluster) -> None:
    del core.gangs["plain"].pods["p0"].bindings[0].users["plain"]


def a_guest_unnoticed(core: Cluster) -> None:
    core.charges.guests.add("plain")


@pytest.mark.parametrize(
    "corrupt",
    [
        counted_twice,
        not_counted_at_its_end,
        without_cells_unnoticed,
        another_rank_unnoticed,
        charged_on_another_node,
        a_ghost_uses_a_gpu,
        a_user_of_a_cell_is_forgotten,
        a_guest_unnoticed,
    ],
)
def test_the_gang_that_makes_the_books_wrong_is_named(corrupt: Callable[[Cluster], None]) -> None:
    core: Cluster = a_scene().core.core
    corrupt(core)
    assert set(by_gang(audited(core))) == {"plain"}


def test_of_a_pod_that_a_gang_has_grown_by_the_gang_is_named() -> None:
    core: Cluster = a_scene().core.core
    (extra,) = core.extras["elastic"].values()
    live = core.gangs[extra]
    core.charges.count(live, next(iter(live.pods.values())), 1)
    assert set(by_gang(audited(core))) == {"elastic"}


def test_what_is_kept_for_a_gang_is_its_own() -> None:
    core: Cluster = a_scene().core.core
    kept = core.reservations.by_gang["large"]
    core.charges.count(kept.live, kept.held[0], -1)
    assert set(by_gang(audited(core))) == {"large"}


def test_a_sum_that_is_wrong_by_itself_has_suspects() -> None:
    core: Cluster = a_scene().core.core
    core.charges.leaves["vc x", "v100"][0] += 3
    found = audited(core)
    assert {(each.book, each.has - each.should) for each in found} == {("quota", 3)}
    assert {each.where for each in found} == {"vc x v100, rank 0"}
    assert "plain" in {each.gang for each in found}
    assert set(by_gang(found)) <= {"plain", "elastic", "large"}
    core.charges.leaves["vc x", "v100"][0] -= 3
    core.hardware.unbound["vc y"][next(iter(core.hardware.unbound["vc y"]))] += 1
    assert [each.gang for each in audited(core)] == [NOBODY_KNOWN]


def test_what_happens_while_it_looks_is_no_drift() -> None:
    """It is left after each step, and things happen before it goes on."""
    scene = a_scene()
    core: Cluster = scene.core.core
    found: list[list[Drift]] = []

    def looking() -> Iterator[None]:
        found.append((yield from audit(core)))

    number = 0
    for number, _ in enumerate(looking(), 1):
        scene.asks(gang(f"new{number}", "x", 1, expected_s=1.0))
        if number == 2:
            scene.leave("plain", "guest")
        if number > 2:
            scene.leave(f"new{number - 1}")
    assert found == [[]]
    assert number > 5
    assert core.charges.touched is None
