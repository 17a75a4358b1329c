"""All that wait, in order: as who looks at each of them finds it."""

from dataclasses import replace

import pytest
from core_door import AGE_FIRST, POLICIES, CoreDoor, door
from histories import history
from random_clusters import Traits
from runs import Run
from scenes import Scene, config, gang, owning
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.cycle import run_cycle
from scheduler.domain.core.model import Gang, Kind, Role

SEEDS = 15
USERS = "uvw"


def of_users(policy: dict[str, object]) -> type[CoreDoor]:
    """A core whose gangs are of several users."""

    class Door(door(policy)):  # type: ignore[misc]
        def request(self, gang: Gang, told: str | None = None) -> None:
            self.core.request(replace(gang, user=USERS[sum(gang.id.encode()) % 3]), told)

    return Door


def in_order(cluster: Cluster) -> list[str]:
    """Gangs that wait, or for which others leave; not what others grow by."""
    waiting = (cluster.gangs[gang] for gang in cluster.queue.gangs)
    lives = [live for live in waiting if live.extra_of is None]
    lives += [cluster.gangs[gang] for gang in cluster.reserved]
    return [live.id for live in sorted(lives, key=cluster.rank_of)]


@pytest.mark.parametrize("policy", [*POLICIES, AGE_FIRST])
def test_who_waits_is_counted_and_named_in_order(policy: dict[str, object]) -> None:
    most = 0

    def watch(run: Run) -> None:
        nonlocal most
        cluster = run.core.core
        gangs = in_order(cluster)
        most = max(most, len(gangs))
        everyone = cluster.forecast.everyone(cluster)
        assert everyone.count == len(gangs)
        for limit in (1, 3, len(gangs)):
            assert everyone.first(limit) == gangs[:limit]
        for index, name in enumerate(gangs):
            found = everyone.before(cluster.rank_of(cluster.gangs[name]), 3)
            assert found == (index, gangs[: min(index, 3)])

    for seed in range(9000, 9000 + SEEDS):
        try:
            history(seed, of_users(policy), Traits(judges="", restarts=0.0), watch=watch)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}", pytrace=False)
    assert most > 5  # there was something to be in order


def test_what_a_gang_grows_by_is_nobody_who_waits() -> None:
    scene = Scene(config(x=owning(("rack/node", 4))))
    scene.asks(gang("half", "x", 4, pods=2))
    role = Role(Kind(4), ("p0", "p1", "p2"), "p", 1)
    scene.asks(Gang("elastic", "x", "user", 0, (role,)), gang("room", "x", 4))
    scene.asks(gang("guest", "x", 4, pods=2, priority=-1), gang("waits", "x", 4, pods=2))
    cluster = scene.core.core
    assert len(cluster.queue.gangs) == 4  # of each pod that it wants beside the others one
    everyone = cluster.forecast.everyone(cluster)
    assert (everyone.count, everyone.first(9)) == (2, ["waits", "guest"])
    guest = cluster.rank_of(cluster.gangs["guest"])
    assert everyone.before(guest, 9) == (1, ["waits"])


def test_who_waits_is_known_between_the_parts_of_a_cycle_and_after_each_word() -> None:
    """Who asks then is told of the moment, not of what was known before."""
    scene = Scene(config(x=owning(("rack/node", 4))))
    cluster, told = scene.core.core, list[list[str]]()

    def look() -> None:
        told.append(in_order(cluster))
        everyone = cluster.forecast.everyone(cluster)
        assert (everyone.count, everyone.first(99)) == (len(told[-1]), told[-1])

    for number in range(9):
        cluster.request(gang(f"g{number}", "x", 4, submitted_at=number))
        look()
    while True:
        steps = iter((False, True))
        run_cycle(cluster, 1.0, lambda _, steps=steps: next(steps))
        look()
        if not cluster.under_way:
            break
    for name in ("g8", "g0", "g1"):
        cluster.release(name)
        look()
        run_cycle(cluster, 2.0)
        look()
    assert [len(gangs) for gangs in told[:9]] == [*range(1, 10)]
    assert told[-1] == ["g6", "g7"]
    assert len({tuple(gangs) for gangs in told}) > 14
