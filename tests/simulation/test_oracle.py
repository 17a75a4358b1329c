"""The oracle itself: the slow scheduler keeps what the checker asks for, and the checker sees what
is broken.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from histories import history
from oracle import choices
from oracle.checker import findings
from oracle.hardware import Hardware
from oracle.private import fits_in_private
from oracle.slow import SlowCluster
from oracle.state import State, is_honoured, spare
from oracle.views import Terms
from random_clusters import Traits
from runs import Maker, Run
from scenes import config, gang, owning
from scheduler.domain.core.config import NodeLimits
from scheduler.domain.core.model import (
    Decision,
    Gang,
    GangClass,
    PodPlace,
    Restored,
)

SLOW = Traits(has_ports=False, changes=0, has_growth=False, judges="cost")


CPUS = {name: NodeLimits(cpu=16) for name in ("n0", "n1", "n2", "n3")}
"""Of two racks of two machines with four GPUs each."""


def a_running_pair() -> State:
    """One gang in x's node cell, an opportunistic one on the machine beside it."""
    run = Run(
        SlowCluster, config(nodes=CPUS, x=owning(("rack/node", 2)), y=owning(("rack", 1))), "cost"
    )
    run.apply(("request", gang("own", "x", 2, pods=2)))
    run.apply(("request", gang("guest", "y", 4, priority=-1)))
    run.apply(("cycle", 0.0))
    assert run.problems == []
    assert findings(run.state) == []
    state: State = run.state
    return state


def test_spare_cells_are_counted_from_the_top_of_a_chain_down() -> None:
    hardware = Hardware(config(nodes=CPUS, x=owning(("rack", 1)), y=owning(("rack/node", 1))))
    assert list(spare(hardware, {}).values()) == [1, 1, 2, 4]
    assert list(spare(hardware, {0: ("x", "rack")}).values()) == [1, 1, 2, 4]
    last_rack = next(cell.number for cell in hardware.cells if cell.address == "r1")
    spread = {last_rack + 1: ("y", "rack/node"), 1: ("y", "rack/node")}
    assert spare(hardware, spread)["rack", "rack"] == -1


def test_more_cells_than_there_are_can_not_be_promised() -> None:
    assert is_honoured(
        Hardware(config(nodes=CPUS, x=owning(("rack", 1)), y=owning(("rack/node", 2))))
    )
    assert not is_honoured(
        Hardware(config(nodes=CPUS, x=owning(("rack", 1)), y=owning(("rack/node", 3))))
    )


def _twice(state: State) -> None:
    place = state.records["guest"].places["p0"]._replace(node="n0")
    state.records["guest"] = replace(state.records["guest"], places={"p0": place})


def _lost_pod(state: State) -> None:
    places = dict(state.records["own"].places)
    del places["p1"]
    state.records["own"] = replace(state.records["own"], places=places)


def _lost_cell(state: State) -> None:
    state.records["own"] = replace(state.records["own"], cells=frozenset())


def _over_quota(state: State) -> None:
    nodes = [cell.number for cell in state.hardware.cells if cell.type == "node"]
    cells = frozenset((number, "rack/node") for number in nodes[:3])
    state.records["own"] = replace(state.records["own"], cells=cells)


def _cells_of_a_guest(state: State) -> None:
    record = state.records["own"]
    state.records["own"] = replace(record, gang=replace(record.gang, priority=-1))


def _in_the_last_free_rack(state: State) -> None:
    moved = {
        pod: PodPlace(pod, "n2", place.gpus) for pod, place in state.records["own"].places.items()
    }
    cells = {cell.address: cell.number for cell in state.hardware.cells}
    state.records["own"] = replace(
        state.records["own"], places=moved, cells=frozenset({(cells["r1/n2"], "rack/node")})
    )
    guest = gang("other", "x", 4)
    place = {"p0": PodPlace("p0", "n0", (0, 1, 2, 3))}
    state.records["other"] = replace(
        state.records["own"],
        gang=guest,
        places=place,
        cells=frozenset({(cells["r0/n0"], "rack/node")}),
    )


def _too_much_cpu(state: State) -> None:
    state.records["guest"] = replace(
        state.records["guest"], gang=gang("guest", "y", 4, priority=-1, cpu=17)
    )


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (_twice, "is own's and guest's"),
        (_lost_pod, "own: has pods"),
        (_lost_cell, "in no cell of its gang"),
        (_over_quota, "has bound 3 of rack/node and owns 2"),
        (_cells_of_a_guest, "has priority -1 and is guaranteed"),
        (_in_the_last_free_rack, "safety: S of rack in rack is -1"),
        (_too_much_cpu, "17 of cpu is used of 16"),
    ],
)
def test_the_checker_sees_what_is_broken(break_it: Callable[[State], None], expected: str) -> None:
    state = a_running_pair()
    break_it(state)
    assert any(expected in found for found in findings(state)), findings(state)


def test_a_gang_that_waits_in_spite_of_its_own_cells_is_seen() -> None:
    state = a_running_pair()
    assert fits_in_private(state, gang("more", "x", 4))
    assert not fits_in_private(state, gang("more", "x", 4, pods=2))
    assert fits_in_private(state, gang("more", "x", 4, pods=2, priority=1))
    assert fits_in_private(state, gang("bare", "x", 0, cpu=16))
    assert fits_in_private(state, gang("bare", "x", 0, cpu=8, pods=2))
    assert not fits_in_private(state, gang("bare", "x", 0, cpu=16, pods=2))
    assert fits_in_private(state, gang("bare", "x", 0, cpu=16, pods=2, priority=1))
    assert not fits_in_private(state, gang("bare", "x", 0, cpu=17))
    state.bad_nodes.add("n3")
    assert not fits_in_private(state, gang("more", "x", 4))


@pytest.mark.parametrize("block", range(4))
def test_the_slow_scheduler_keeps_the_definitions(block: int) -> None:
    for seed in range(24 + block * 6, 30 + block * 6):
        told = history(seed, SlowCluster, SLOW)
        assert told.problems == (), f"seed {seed}: {told.problems}"


class Forgetful(SlowCluster):
    """Binds nothing."""

    def decide(self, now: float) -> list[Decision]:
        """One cycle, after which nobody has cells."""
        decisions = super().decide(now)
        for name, record in self.state.records.items():
            self.state.records[name] = replace(record, cells=frozenset())
        return decisions


class Prudish(SlowCluster):
    """Gives nothing to opportunistic gangs."""

    def _decide(self, gang: Gang, now: float) -> Iterator[Decision]:
        return iter(()) if gang.priority < 0 else super()._decide(gang, now)


class Bloodthirsty(SlowCluster):
    """Ends everybody who may be ended."""

    def _choose_victims(self, gang: Gang, terms: Terms, now: float) -> Terms:
        return terms


class Curt(SlowCluster):
    """Has one reason for everything."""

    def _tell(self, gang: Gang, code: str) -> Iterator[Decision]:
        return super()._tell(gang, "shape" if code != "preempting" else code)


class Modest(SlowCluster):
    """Never charges gangs without GPUs: they are opportunistic at once."""

    def _decide(self, gang: Gang, now: float) -> Iterator[Decision]:
        found = choices.find(self.state, gang, choices.AS_OPPORTUNISTIC)
        if found and choices.may_be_opportunistic(gang):
            yield self._take(gang, found, now, GangClass.OPPORTUNISTIC)
        else:
            yield from super()._decide(gang, now)


class Proud(SlowCluster):
    """Gangs without GPUs are in their virtual cluster, or wait."""

    def _decide(self, gang: Gang, now: float) -> Iterator[Decision]:
        is_stuck = choices.may_be_opportunistic(gang) and not choices.cheapest_step(
            self.state, gang
        )
        return iter(()) if is_stuck else super()._decide(gang, now)


class Gentle(SlowCluster):
    """Nobody leaves for gangs without GPUs."""

    def _decide(self, gang: Gang, now: float) -> Iterator[Decision]:
        is_bare = choices.is_without_gpus(gang)
        costs = is_bare and choices.cheapest_step(self.state, gang) == "victims"
        return iter(()) if costs else super()._decide(gang, now)


class Cruel(SlowCluster):
    """Everybody leaves for gangs without GPUs."""

    def _choose_victims(self, gang: Gang, terms: Terms, now: float) -> Terms:
        is_bare = choices.is_without_gpus(gang)
        return terms if is_bare else super()._choose_victims(gang, terms, now)


class Mute(SlowCluster):
    """Tells gangs without GPUs that there is no place of that shape."""

    def _tell(self, gang: Gang, code: str) -> Iterator[Decision]:
        is_bare = choices.is_without_gpus(gang) and code != "preempting"
        return super()._tell(gang, "shape" if is_bare else code)


class Amnesiac(SlowCluster):
    """Forgets at a restart who was told to leave."""

    def restore(self, kept: Restored, now: float) -> None:
        """Without what it was told."""
        super().restore(replace(kept, preempted_until=None, preempted_for=None), now)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (Forgetful, "in no cell of its gang"),
        (Prudish, "waits and could be placed at the cost of nobody"),
        (Bloodthirsty, "GPUs of victims; it could be"),
        (Curt, "waits for shape; the definitions say"),
        (Amnesiac, "restart: "),
    ],
)
def test_a_scheduler_that_breaks_a_rule_is_found_out(broken: Maker, expected: str) -> None:
    traits = replace(SLOW, restarts=0.5)
    found = (text for seed in range(40) for text in history(seed, broken, traits).problems)
    assert any(expected in text for text in found)


BARE = gang("bare", "x", 0, priority=1, cpu=8)
GUESTS = tuple(gang(f"guest{number}", "y", 4, priority=-1, cpu=16) for number in range(4))


@pytest.mark.parametrize(
    ("broken", "owned", "gangs", "expected"),
    [
        (Modest, 2, (BARE,), "in its virtual cluster at the cost nobody"),
        (Proud, 0, (BARE,), "waits and could be placed at the cost of nobody, as an opportun"),
        (Gentle, 2, (*GUESTS, BARE), "waits and could be placed at the cost of victims"),
        (Cruel, 2, (*GUESTS, BARE), "costs 16 GPUs of victims; it could be"),
        (Mute, 0, (*GUESTS, BARE), "waits for shape; the definitions say"),
    ],
)
def test_gangs_without_gpus_are_judged_like_others(
    broken: Maker, owned: int, gangs: tuple[Gang, ...], expected: str
) -> None:
    x = owning(("rack/node", owned)) if owned else owning()
    for maker in (SlowCluster, broken):
        run = Run(maker, config(nodes=CPUS, x=x, y=owning(("rack/node", 2))), "cost")
        for one in gangs:
            run.apply(("request", one))
            run.apply(("cycle", 1.0))
        assert (run.problems == []) == (maker is not broken), run.problems
        assert maker is not broken or any(expected in text for text in run.problems)


def test_a_scheduler_that_does_not_care_how_near_pods_are_is_found_out() -> None:
    traits = replace(SLOW, judges="all")
    missing = {"at level", "racks, not"}
    for seed in range(20, 80):
        for text in history(seed, SlowCluster, traits).problems:
            missing = {each for each in missing if each not in text}
        if not missing:
            break
    assert not missing
