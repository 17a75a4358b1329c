"""What is so of every preemption, in random histories of clusters of some dozens of machines."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from core_door import CoreDoor
from judging import gang_of, preempted_for_no_higher, running
from scenes import config, gang, owning, racks
from scheduler.domain.core.config import Policy
from scheduler.domain.core.interface import Core
from scheduler.domain.core.model import Decision, Gang, GangClass, Preempted
from seeds import blocks

HOUR_S = 3_600.0


class Book:
    """What the rules say of preemptions inside a virtual cluster, written down beside a core."""

    def __init__(self, core: Core, policy: Policy) -> None:
        self.core = core
        self.policy = policy
        self.inside: list[tuple[float, str]] = []
        self.seen = 0

    def take(self, decisions: Sequence[Decision], now: float) -> Iterator[str]:
        """Decisions of one cycle: what is wrong with them."""
        yield from preempted_for_no_higher(self.core, decisions)
        for each in decisions:
            if isinstance(each, Preempted) and each.reason.code == "priority":
                self.seen += 1
                yield from self._inside(gang_of(self.core, each.gang), now)

    def _inside(self, victim: Gang, now: float) -> Iterator[str]:
        run_s = self.policy.min_run_s if victim.min_run_s is None else victim.min_run_s
        began = running(self.core)[victim.id]
        if began is None or now < began + run_s:
            yield f"{victim.id} leaves after {now} - {began} s, before {run_s}"
        self.inside.append((now, victim.virtual_cluster))
        lately = [vc for at, vc in self.inside if now < at + HOUR_S]
        most = self.policy.preemptions_per_hour
        if most is not None and lately.count(victim.virtual_cluster) > most:
            yield f"{victim.id} is one more than {most} in an hour"


def a_wish(random: Random, number: int) -> Gang:
    """A gang of a few sizes."""
    gpus = random.choice((1, 1, 2, 4))
    return gang(
        f"g{number:03}",
        random.choice("xy"),
        gpus,
        pods=random.choice((1, 1, 2, 3, 5, 9)),
        priority=random.choice((-1, -1, 0, 1, 2, 3)),
        min_run_s=random.choice((None, None, 0.0, 900.0)),
        checkpoint_s=random.choice((None, 200.0)),
        is_lazy=random.choice((None, None, True)),
    )


def a_history(seed: int, *, are_many: bool = False) -> Iterator[tuple[Book, list[Decision], float]]:
    """A core and what it decides, cycle by cycle."""
    random = Random(seed)
    policy = Policy(
        min_run_s=random.choice((0.0, 300.0)),
        preemptions_per_hour=None if are_many else random.choice((None, 0, 1, 2, 5)),
        is_backfilling=random.random() < 0.3,
        assumed_s=2_000.0,
    )
    half = 10
    cells = racks(half)
    half_each = owning(("rack/node", half))
    core = CoreDoor(config(cells, policy=policy, x=half_each, y=half_each))
    for number in range(2 * half):
        core.set_node_health(f"n{number}", True)
    book, now = Book(core.core, policy), 0.0
    for number in range(40):
        now += random.choice((1.0, 20.0, 100.0, 400.0))
        leave(core, now)
        for more in range(random.choice((1, 2, 4))):
            core.request(a_wish(random, 4 * number + more))
        some = sorted(name for name, at in running(core.core).items() if at is not None)
        if len(some) > 20 and random.random() < 0.8:
            for name in random.sample(some, 2):
                core.release(name)
        yield book, list(core.decide(now)), now


def leave(core: CoreDoor, now: float) -> None:
    """Whose grace is over is gone, and wants to start again."""
    for each in sorted(core.leaving()):
        if each.until <= now:
            wish = gang_of(core.core, each.gang)
            core.release(each.gang)
            core.request(wish)


@pytest.mark.parametrize("block", blocks(4, deep=200, size=4))
def test_protection_binds_inside_a_virtual_cluster(block: range) -> None:
    seen = 0
    for seed in block:
        for book, decided, now in a_history(seed):
            wrong = list(book.take(decided, now))
            assert not wrong, (seed, wrong)
        seen += book.seen
    assert seen > 0


def test_a_guarantee_is_served_whatever_is_protected_among_guests() -> None:
    for seed in range(8):
        random = Random(seed)
        policy = Policy(min_run_s=1e9, preemptions_per_hour=0)
        half = owning(("rack/node", 8))
        core = CoreDoor(config(racks(8), policy=policy, x=half, y=half))
        for number in range(16):
            core.set_node_health(f"n{number}", True)
        for number in range(40):
            pods = random.choice((1, 1, 2, 5))
            core.request(gang(f"guest{number}", "y", random.choice((1, 2, 4)), pods, priority=-1))
        core.decide(1.0)
        wishes = [gang(f"own{n}", "x", 4, pods) for n, pods in enumerate((1, 2, 5))]
        for wish in wishes:
            core.request(wish)
        core.decide(2.0)
        leave(core, 100.0)
        core.decide(100.0)
        held = [core.gang(wish.id) for wish in wishes]
        assert all(each.gang_class is GangClass.GUARANTEED for each in held), seed
        assert all(each.started_at is not None for each in held), seed
