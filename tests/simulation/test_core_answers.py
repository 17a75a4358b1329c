"""What the core answers to "why" is true: when it is made so, the gang starts. And
asking changes nothing.
"""

import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from digests import digest
from oracle.hardware import Hardware
from random_clusters import a_cluster, a_gang
from scheduler.domain.core.config import USUAL_ORDER
from scheduler.domain.core.cycle import Core
from scheduler.domain.core.interface import Counterfactual
from scheduler.domain.core.model import OPPORTUNISTIC, Deferred, Gang, Placed, Preempted
from scheduler.domain.core.nodes import Phase
from seeds import how_many
from test_core_histories import fault

HISTORIES, STEPS = how_many(3, deep=40), 40
ALL = 10_000

ASKED = 0.3
"""Of the cycles."""

POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"is_backfilling": True, "assumed_s": 20.0, "max_pass_s": 100.0},
    {"is_backfilling": True, "assumed_s": 20.0, "order_by": USUAL_ORDER, "min_run_s": 10.0},
    {"preemptions_per_hour": 2},
)

PARTS = ("ends", "fewer", "is_opportunistic", "is_borrowing", "nodes")


def a_history(seed: int, policy: dict[str, Any]) -> Iterator[tuple[Core, float]]:
    """A core after each cycle, with its time."""
    chance = random.Random(seed)
    config = a_cluster(chance)
    hardware = Hardware(config)
    core = Core(replace(config, policy=replace(config.policy, **policy)))
    leaving: list[str] = []
    for number in range(STEPS):
        kind, now = chance.random(), float(number)
        if kind < 0.65:
            gang = a_gang(chance, hardware, f"g{number}", now, 0.15)
            user, runs_s = chance.choice("uv"), chance.choice((None, 5.0, 30.0))
            is_borrowing = chance.random() < 0.2
            core.request(replace(gang, is_borrowing=is_borrowing, user=user, expected_s=runs_s))
        elif kind < 0.75 and core.gangs:
            core.release(chance.choice(sorted(core.gangs)))
        elif kind < 0.9:
            fault(core, chance, hardware.machines)
        elif leaving:
            core.release(leaving.pop(chance.randrange(len(leaving))))
        leaving += [each.gang for each in core.cycle(now) if isinstance(each, Preempted)]
        yield core, now


def waiting(core: Core) -> list[str]:
    """Gangs that wait for a placement."""
    records = core.gangs.items()
    return [gang for gang, record in records if record.workload.phase is Phase.WAITING]


def next_cycle(core: Core, gang: str, now: float) -> str:
    """What the next cycle makes of a gang that waits."""
    placed = {each.gang for each in core.cycle(now) if isinstance(each, Placed)}
    if gang in placed:
        return "placed"
    return core.gangs[gang].workload.phase.name if gang in core.gangs else "gone"


class MadeSo:
    """Does what a part of an answer says."""

    def __init__(self, core: Core, gang: str, answer: Counterfactual, now: float) -> None:
        self.core, self.gang, self.answer, self.now = core, gang, answer, now

    def part(self, name: str) -> str:
        """What the next cycle makes of the gang then."""
        getattr(self, name)()
        return next_cycle(self.core, self.gang, self.now)

    def ends(self) -> None:
        """They end."""
        self._nobody_before()
        assert self.answer.ends is not None
        for end in self.answer.ends.gangs:
            self.core.release(end.gang)

    def fewer(self) -> None:
        """It asks for fewer pods."""
        fewer, gang = self.answer.fewer, self._gang()
        assert fewer is not None
        roles = [
            replace(role, pods=role.pods[: fewer.pods]) if role.name == fewer.role else role
            for role in gang.roles
        ]
        self._ask_anew(roles=tuple(roles))

    def is_opportunistic(self) -> None:
        """It asks with another priority."""
        self._ask_anew(priority=OPPORTUNISTIC)

    def is_borrowing(self) -> None:
        """It asks for what others lend, too."""
        self._ask_anew(is_borrowing=True)

    def nodes(self) -> None:
        """They are healthy, and open."""
        self._nobody_before()
        for node in self.answer.nodes:
            self.core.nodes.uncordon(node)
            self.core.nodes.set_node_health(node, True)
            self.core.nodes.block(node, (), {}, ())
            for gpu in range(32):
                self.core.nodes.set_gpu_health(node, gpu, True)

    def _gang(self) -> Gang:
        return self.core.gangs[self.gang].workload.gang

    def _ask_anew(self, **changed: Any) -> None:
        gang = self._gang()
        self.core.release(self.gang)
        self.core.request(replace(gang, **changed))

    def _nobody_before(self) -> None:
        """No gang that comes before it waits, and nothing is reserved for others."""
        order = self.core.questions.first(ALL)
        for gang in waiting(self.core):
            is_before = order.index(gang) < order.index(self.gang)
            if is_before or (gang != self.gang and self.core.gangs[gang].reservation is not None):
                self.core.release(gang)


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_true(policy: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        for core, now in a_history(seed, policy):
            if not (some := waiting(core)) or chance.random() > ASKED:
                continue
            gang = chance.choice(some)
            answer = core.questions.counterfactual(gang)
            assert answer is not None
            for part in PARTS:
                if getattr(answer, part):
                    counts[part] += 1
                    came = MadeSo(*deepcopy((core, gang, answer)), now).part(part)
                    if came != "placed" and (came != "NOMINATED" or part not in ("ends", "nodes")):
                        wrong.append(f"{part}: seed {seed}, {now:.0f}: {gang} {came}")
    print(f"{len(wrong)} of {counts} were wrong", *wrong, sep="\n")
    assert not wrong


@pytest.mark.parametrize("policy", POLICIES)
def test_a_reason_is_what_a_new_search_for_a_place_would_say(policy: dict[str, Any]) -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        for core, now in a_history(seed, policy):
            if not (some := waiting(core)) or chance.random() > ASKED:
                continue
            other = deepcopy(core)
            other.settle(is_settled=False)
            other.settle(is_settled=True)
            if any(not isinstance(each, Deferred) for each in other.cycle(now)):
                continue  # a place that the search had missed
            for gang in some:
                reason = core.questions.reason_now(gang)
                assert reason == other.questions.reason_of(gang), (seed, now, gang)


@pytest.mark.parametrize("policy", POLICIES)
def test_asking_changes_nothing(policy: dict[str, Any]) -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        for core, now in a_history(seed, policy):
            if chance.random() > ASKED:
                continue
            before = digest(core)
            for gang in waiting(core):
                core.questions.reason_now(gang)
                core.questions.before(gang)
                core.questions.ahead(gang)
                core.questions.counterfactual(gang)
            after = digest(core)
            differs = [each for each in zip(before, after, strict=False) if each[0] != each[1]]
            assert after == before, (seed, now, differs[:3])


def test_order_and_position_are_the_queues() -> None:
    for core, _ in a_history(1, POLICIES[2]):
        order = core.questions.first(ALL)
        for number, name in enumerate(order):
            before = core.questions.before(name)
            assert (before.number, list(before.first)) == (number, order[: min(number, 5)])
            gang, ahead = core.gangs[name].workload.gang, core.questions.ahead(name)
            if core.gangs[name].workload.phase is Phase.NOMINATED:
                assert ahead is None
                continue
            inside = [
                each
                for each in order
                if core.gangs[each].workload.phase is Phase.WAITING
                and is_beside(core.gangs[each].workload.gang, gang)
            ]
            assert ahead is not None
            assert ahead.position == inside.index(name) + 1
            assert ahead.waiting == len(inside)
            first = inside[: min(ahead.position - 1, 5)]
            assert [each for each, _ in ahead.first] == first


def is_beside(one: Gang, other: Gang) -> bool:
    """They are of one virtual cluster and class."""
    is_same = one.virtual_cluster == other.virtual_cluster
    return is_same and (one.priority == OPPORTUNISTIC) == (other.priority == OPPORTUNISTIC)
