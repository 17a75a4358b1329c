"""What is advised is true: where it is done the cells are free, and all who moved run. No other
cell could be freed by moving fewer GPUs. And asking changes nothing.
"""

from collections import Counter
from copy import deepcopy
from random import Random

import pytest
from core_door import POLICIES, door
from histories import history
from moves import is_free, move, nobody_waits, restored, spots_of
from random_clusters import Traits
from runs import Run
from scenes import Scene, config, gang, owning, racks
from scheduler.domain.core.advising import Advice, advise
from scheduler.domain.core.auditing import audited
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.model import Placed, Role
from scheduler.domain.core.occupants import Spot
from scheduler.domain.core.wishes import Wish
from test_borrowing_properties import a_history
from unchanged import changed, fingerprint

SEEDS, BUSY_SEEDS = 15, 60


class Asked:
    """Asks after each cycle, and has what is told done on a copy."""

    def __init__(self, seed: int, *, is_judged: bool) -> None:
        self.random = Random(seed)
        self.is_judged = is_judged
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def watch(self, run: Run) -> None:
        cluster: Cluster = run.core.core  # type: ignore[attr-defined]
        self.ask(cluster, self.random.choice((1, 1, 1, 2)))

    def ask(self, cluster: Cluster, cells: int) -> None:
        forest = cluster.hardware.forest
        chain = self.random.choice(sorted(forest.chains))
        levels = range(forest.chains[chain].node_level, forest.chains[chain].top + 1)
        wish = Wish(forest.chains[chain], self.random.choice(levels), cells)
        before = fingerprint(cluster)
        found = advise(cluster, [wish])
        changes = changed(before, fingerprint(cluster))
        assert not changes, f"asking changes {changes}"
        where = f"{cluster.now}: {cells} {wish.cell_type}"
        if found.reason is None:
            self._restored(deepcopy((cluster, found)), where)
            if self.is_judged:
                self._done(deepcopy((cluster, found)), where)
        if self.is_judged and cells == 1 and not found.is_cut:
            self._none_is_cheaper(cluster, wish, found, where)

    def _restored(self, copied: tuple[Cluster, Advice], where: str) -> None:
        cluster, found = copied
        self.counts["moves" if found.moves else "free"] += 1
        guaranteed = {
            each.live.id
            for each in found.moves
            if each.live.gang.priority >= 0 and not each.is_extra
        }
        restored(cluster, found)
        spots = spots_of(cluster, found.wish)
        if not all(is_free(cluster, spots[cell]) for cell in found.cells):
            self.wrong.append(f"{where}: not free where they are restored")
        lost = [name for name in guaranteed if not cluster.gangs[name].is_charged]
        costly = [n for n in lost if not all(r.kind.costs_nothing for r in asked_roles(cluster, n))]
        if costly or audited(cluster):
            self.wrong.append(f"{where}: {costly} have lost their cells")

    def _done(self, copied: tuple[Cluster, Advice], where: str) -> None:
        cluster, found = copied
        nobody_waits(cluster)
        spots = spots_of(cluster, found.wish)
        nodes = nodes_in(cluster, [spots[cell] for cell in found.cells])
        names = [each.live.id for each in found.moves if not each.is_extra]
        for each in found.moves:
            if each.is_extra and each.live.extra_of is not None:
                cluster.release_pod(each.live.extra_of, next(iter(each.before)))
        decided = move(cluster, nodes, names)
        runs = {each.gang for each in decided if isinstance(each, Placed)}
        if not runs.issuperset(names):
            self.wrong.append(f"{where}: {sorted(set(names) - runs)} don't run")
        if not all(is_free(cluster, spots[cell]) for cell in found.cells):
            self.wrong.append(f"{where}: not free")

    def _none_is_cheaper(self, cluster: Cluster, wish: Wish, found: Advice, where: str) -> None:
        """Of the cells whose gangs have fewer GPUs none can be freed in the same way."""
        for name in spots_of(cluster, wish):
            other = deepcopy(cluster)
            spot = spots_of(other, wish)[name]
            gangs = gangs_in(other, spot)
            if gangs is None:
                continue
            gpus = sum(other.gangs[each].gpus for each in gangs)
            if found.reason is None and gpus >= found.price[0]:
                continue
            self.counts["cheaper"] += 1
            nobody_waits(other)
            decided = move(other, nodes_in(other, [spot]), gangs)
            runs = {each.gang for each in decided if isinstance(each, Placed)}
            costs = len(decided) > len(runs)
            if runs.issuperset(gangs) and not costs and is_free(other, spot):
                self.wrong.append(
                    f"{where}: {name} could be freed by {sorted(gangs)}, {found.reason}"
                )


def asked_roles(cluster: Cluster, name: str) -> tuple[Role, ...]:
    return cluster.gangs[name].gang.roles


def nodes_in(cluster: Cluster, spots: list[Spot]) -> set[str]:
    """Machines of which something is in the cells."""
    return {s.machine.name for spot in spots for s, _ in spot.leaves(cluster.hardware)}


def gangs_in(cluster: Cluster, spot: Spot) -> list[str] | None:
    """Who has a pod on its machines; None: it is not sure that they could all be moved."""
    found: set[str] = set()
    for state, _ in spot.leaves(cluster.hardware):
        if state.usable != state.slot.shape.full or len(state.machine.slots) > 1:
            return None
        found.update(state.machine.pods)
    for name in found:
        live = cluster.gangs[name]
        if live.started_at is None or live.is_leaving or live.waiting or live.reserved:
            return None
        if live.strangers or live.extra_of is not None or "\n" in "".join(live.pods):
            return None
    return sorted(found)


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_what_is_advised_is_true(number: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(51000 + 1000 * number, 51000 + 1000 * number + SEEDS):
        asked = Asked(seed, is_judged=number == 0)
        traits = Traits(judges="", restarts=0.0)
        found = history(seed, door(POLICIES[number]), traits, watch=asked.watch)
        assert not any("fails" in each for each in found.problems), (seed, found.problems)
        assert not asked.wrong, (seed, asked.wrong)
        counts += asked.counts
    assert counts["moves"] > 5, counts
    assert number or counts["cheaper"] > 5, counts


def a_busy_scene(lot: Random) -> Scene:
    """Three racks in which many small gangs have come and some have gone."""
    vcs = {"x": owning(("rack/node", 4)), "y": owning(("rack/node", 2))}
    scene = Scene(config(cells=racks(3), **vcs))
    for node in ("n4", "n5"):
        scene.core.set_node_health(node, True)
    for number in range(18):
        gpus, pods = lot.choice(((1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (2, 2)))
        priority, vc = lot.choice((-1, 0, 0, 5)), lot.choice("xxy")
        scene.asks(gang(f"g{number}", vc, gpus, pods, priority=priority))
    nobody_waits(scene.core.core)
    running = sorted(scene.core.gangs)
    scene.leave(*lot.sample(running, len(running) * lot.choice((1, 2)) // 3))
    scene.cycle()
    return scene


def test_of_one_cell_the_cheapest_is_freed_that_can_be() -> None:
    counts: Counter[str] = Counter()
    for seed in range(61000, 61000 + BUSY_SEEDS):
        asked = Asked(seed, is_judged=True)
        scene = a_busy_scene(asked.random)
        for _ in range(2):
            asked.ask(scene.core.core, 1)
        assert not asked.wrong, (seed, asked.wrong)
        counts += asked.counts
    assert counts["moves"] > BUSY_SEEDS // 3, counts
    assert counts["cheaper"] > BUSY_SEEDS // 3, counts


def test_of_elastic_and_borrowing_gangs_it_is_true_too() -> None:
    counts: Counter[str] = Counter()
    for seed in range(71000, 71000 + SEEDS):
        asked = Asked(seed, is_judged=False)
        for cluster, _, _ in a_history(seed):
            if cluster.under_way is None:
                asked.ask(cluster, asked.random.choice((1, 1, 2)))
        assert not asked.wrong, (seed, asked.wrong)
        counts += asked.counts
    assert counts["moves"] > SEEDS, counts
