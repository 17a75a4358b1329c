"""Is the accounting right? All that the state keeps is worked out once more from places and cells.

An audit goes in steps, and cycles may run between these. The facts of one node, gang or rack are
compared within one step. Sums are copied in one step with all that they count, and compared later.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence

from scheduler.domain.core.forest import Cell, Chain
from scheduler.domain.core.interface import Drift
from scheduler.domain.core.nodes import Binding, Node, Phase, Place, Pool, Shares, Slot, Workload
from scheduler.domain.core.state import UNLIMITED, State

GPUS, QUOTA, CELLS, AMOUNTS, INDEX = "gpus", "quota", "cells", "amounts", "index"
"""The accounts that can differ: GPUs in use, charged ones, bound cells, amounts of all else and
ports, and the views.
"""

NOBODY = ""
SUSPECTS = 3
"""Gangs that are named where only a sum is wrong."""

COUNTED = 100
"""Pods or cells that are counted in one step."""

Steps = Iterator[Drift | None]
"""What is found; None: the end of a step."""

Held = list[tuple[Workload, list[Place]]]
"""Workloads of one slot, with their places there."""


def audit(
    state: State, workloads: Callable[[], Iterable[Workload]]
) -> Generator[None, None, list[Drift]]:
    """Compare all, in steps. ``workloads``: all that may have places, at any time."""
    found: list[Drift] = []
    for each in _steps(state, workloads):
        if each is None:
            yield
        else:
            found.append(each)
    return found


def drifts(state: State, workloads: Collection[Workload]) -> list[Drift]:
    """The same at once."""
    return [each for each in _steps(state, lambda: workloads) if each is not None]


def _steps(state: State, workloads: Callable[[], Iterable[Workload]]) -> Steps:
    yield from _sums(state, workloads())
    for pool in state.pools:
        if pool.chain is not None:
            yield from _spare(state, pool, pool.chain)
    yield from _nodes(state, workloads)
    for workload in [*workloads()]:
        for place in workload.places:
            if workload not in place.slot.pods:
                yield _of_leaves(workload, GPUS, place.slot.node.name, 0, place.gpus)
        yield None
    for view in [*state.views()]:
        for is_same in view.compared():
            if not any(view is each for each in state.views()):
                break  # it was dropped meanwhile, and is not kept up to date
            if not is_same:
                yield Drift(NOBODY, INDEX, 1, f"{INDEX} of {view.pool.gpu_type}: a view differs")
            yield None


def _drift(gang: str, book: str, where: str, has: int, should: int) -> Drift:
    text = f"{book} of {where}: accounting has {has}, placements have {should}"
    return Drift(gang, book, max(abs(has - should), 1), text)


def _of_leaves(workload: Workload | None, book: str, where: str, has: int, should: int) -> Drift:
    """The same of sets of leaves, or of ports."""
    gang = NOBODY if workload is None else workload.gang.id
    return _drift(gang, book, where, has.bit_count(), should.bit_count())


# One node.


def _nodes(state: State, workloads: Callable[[], Iterable[Workload]]) -> Steps:
    places, known = _Places(), {*workloads()}
    unknown: list[tuple[Slot, Workload]] = []
    for node in state.nodes.values():
        held: Held = []
        for slot in node.slots:
            here = [(workload, places.on(slot, workload)) for workload in slot.pods]
            unknown += [(slot, workload) for workload in slot.pods if workload not in known]
            yield from _of_slot(slot, here)
            yield from _of_shares(state, slot, here)
            held += here
        yield from _of_amounts(state, node, held)
        yield None
    known = {*workloads()}  # some have come since
    for slot, workload in unknown:
        if workload in slot.pods and workload not in known:
            used = slot.pods[workload][0]
            yield _of_leaves(workload, GPUS, f"{slot.node.name}, of a gang that is over", used, 0)


class _Places:
    """Places of workloads by slot, which are found once for as long as they are the same."""

    def __init__(self) -> None:
        self._found: dict[Workload, tuple[tuple[Place, ...], dict[Slot, list[Place]]]] = {}

    def on(self, slot: Slot, workload: Workload) -> list[Place]:
        """Those on a slot."""
        found = self._found.get(workload)
        if found is None or found[0] is not workload.places:
            by_slot: defaultdict[Slot, list[Place]] = defaultdict(list)
            for place in workload.places:
                by_slot[place.slot].append(place)
            found = self._found[workload] = workload.places, by_slot
        return found[1].get(slot, [])


def _of_slot(slot: Slot, held: Held) -> Iterator[Drift]:
    used = holding = staying = charged = 0
    node = slot.node.name
    for workload, places in held:
        is_leaving = workload.phase is Phase.PREEMPTED
        is_nominated = workload.phase is Phase.NOMINATED
        pods = charges = 0
        for place in places:
            gpus = place.gpus
            charge = 0 if is_leaving or workload.is_opportunistic else place.charge
            outside = charge & ~slot.bound.get(place.owner, 0)
            others = charged if charge not in slot.shares else charged & ~charge
            for book, where, shared in (
                (GPUS, f"{node}, shared", gpus & (holding if is_nominated else used)),
                (GPUS, f"{node}, where others stay", 0 if is_leaving else gpus & staying),
                (QUOTA, f"{node}, charged twice", charge & others),
                (CELLS, f"{node}, charged outside of its cells", outside),
            ):
                if shared:
                    yield _of_leaves(workload, book, where, shared, 0)
            if is_nominated:
                holding |= gpus
            else:
                used |= gpus
            staying |= 0 if is_leaving else gpus
            charged |= charge
            pods, charges = pods | gpus, charges | charge
        for book, has, should in zip(
            (GPUS, QUOTA), slot.pods[workload], (pods, charges), strict=True
        ):
            if has != should:
                yield _of_leaves(workload, book, node, has, should)
    for book, where, has, should in (
        (GPUS, f"{node}, in use", slot.used, used),
        (GPUS, f"{node}, nominated", slot.held, holding),
        (GPUS, f"{node}, staying", slot.staying, staying),
        (QUOTA, f"{node}, charged", slot.charged, charged),
    ):
        if has != should:
            yield _of_leaves(None, book, where, has, should)
    yield from _of_cells(slot)


def _of_shares(state: State, slot: Slot, held: Held) -> Iterator[Drift]:
    """Pods that share a charged leaf, and where others may join them."""
    pods: defaultdict[int, list[tuple[int, Place]]] = defaultdict(list)
    for workload, places in held:
        if not workload.is_opportunistic and workload.phase is not Phase.PREEMPTED:
            for place in (each for each in places if each.is_shared):
                pods[place.charge].append((workload.priority, place))
    should: dict[int, Shares] = {}
    for leaf, some in pods.items():
        amounts = zip(*(place.amounts for _, place in some), strict=True)
        priorities, holds = sorted(each for each, _ in some), sum(not p.pod for _, p in some)
        should[leaf] = Shares(tuple(priorities), tuple(map(sum, amounts)), holds)
    node = slot.node.name
    if slot.shares != should:
        yield _drift(NOBODY, QUOTA, f"{node}, sharing pods", *map(_sharing, (slot.shares, should)))
    for owner in slot.bound:
        has = state.sharing.get((slot.pool, owner), 0) >> slot.number & 1
        if has != state.is_sharing(slot, owner):
            yield _drift(NOBODY, INDEX, f"{node}, shared leaves of {owner}", has, 1 - has)


def _sharing(shares: Mapping[int, Shares]) -> int:
    return sum(len(each.priorities) for each in shares.values())


def _of_cells(slot: Slot) -> Iterator[Drift]:
    """The leaves of each owner are those of its bound cells; cells share none."""
    bound: Counter[str] = Counter()
    for mask, binding in slot.bindings:
        bound[binding.owner] |= mask
    taken = 0
    for owner in bound.keys() | slot.bound.keys():
        has, should, where = slot.bound.get(owner, 0), bound[owner], f"{slot.node.name}, {owner}"
        if has != should:
            yield _of_leaves(None, CELLS, where, has, should)
        if should & taken:
            yield _of_leaves(None, CELLS, f"{where} and another owner", should & taken, 0)
        taken |= should
    if slot.open != slot.shape.full & ~taken:
        where, should = f"{slot.node.name}, not bound", slot.shape.full & ~taken
        yield _of_leaves(None, CELLS, where, slot.open, should)


def _of_amounts(state: State, node: Node, held: Held) -> Iterator[Drift]:
    limited = [each for each in held if node.slots[0].model.limited]
    for what, amounts, is_soon in (("left", node.left, False), ("left soon", node.soon, True)):
        left = _left(state, node, limited, is_soon=is_soon)
        for name, has, should in zip(state.resources.names, amounts, left, strict=True):
            if has != should:
                yield _drift(NOBODY, AMOUNTS, f"{node.name}, {name} {what}", has, should)
    ports = 0
    for workload, places in held:
        for place in places:
            if place.ports & ports:
                shared = place.ports & ports
                yield _of_leaves(workload, AMOUNTS, f"{node.name}, shared ports", shared, 0)
            ports |= place.ports
    if ports != node.ports:
        yield _of_leaves(None, AMOUNTS, f"{node.name}, ports", node.ports, ports)


def _left(state: State, node: Node, held: Held, *, is_soon: bool) -> tuple[int, ...]:
    totals = state.resources.totals(node.limits)
    left = [UNLIMITED if total is None else total for total in totals]
    for number, amount in enumerate(node.blocked):
        left[number] -= amount
    for workload, places in held:
        for place in () if is_soon and workload.phase is Phase.PREEMPTED else places:
            left = [a - b for a, b in zip(left, place.amounts, strict=True)]
    return tuple(left)


# Sums.

Account = tuple[str, str, int]
"""Whose cells, of which GPU type, at which priority."""


def _sums(state: State, workloads: Iterable[Workload]) -> Steps:
    """Charged leaves, preempted gangs, and users of bound cells."""
    placed = [(each, each.phase, each.owner, each.priority, each.places) for each in workloads]
    has: dict[Account, int] = {
        (owner, leaf, priority): leaves
        for (owner, leaf), by_priority in state.charged.items()
        for priority, leaves in by_priority.items()
    }
    leaving, slots = state.leaving, (slot for pool in state.pools for slot in pool.slots)
    cells = {slot: slot.bindings for slot in slots if slot.bindings}
    users = {binding: binding.users for some in cells.values() for _, binding in some}
    yield None
    charged: defaultdict[Account, Counter[str]] = defaultdict(Counter)
    shared: dict[tuple[Slot, int], tuple[Account, str]] = {}
    pods: Counter[Binding] = Counter()
    number = 0
    for workload, phase, owner, priority, places in placed:
        for place in () if owner is None or phase is Phase.PREEMPTED else places:
            if place.charge and place.slot.pool.gpu_type is not None:
                account = place.owner, place.slot.pool.gpu_type, priority
                if place.is_shared:  # it counts once, at the highest priority
                    leaf, one = (place.slot, place.charge), (account, workload.gang.id)
                    shared[leaf] = max(shared.get(leaf, one), one, key=lambda each: each[0][2])
                else:
                    charged[account][workload.gang.id] += place.charge.bit_count()
                for mask, binding in cells.get(place.slot, ()):
                    pods[binding] += bool(mask & place.charge)
            number += 1
            if number % COUNTED == 0:
                yield None
    for account, gang in shared.values():
        charged[account][gang] += 1
    for account in sorted(has.keys() | charged.keys()):
        yield from _of_account(account, has.get(account, 0), charged.get(account, {}))
    should = sum(phase is Phase.PREEMPTED for _, phase, *_ in placed)
    if leaving != should:
        yield _drift(NOBODY, QUOTA, "preempted gangs", leaving, should)
    yield from _of_users(users, pods)


def _of_account(account: Account, has: int, gangs: Mapping[str, int]) -> Iterator[Drift]:
    """Named are the gangs that are charged the difference, else the first of the sum."""
    should, (owner, leaf, priority) = sum(gangs.values()), account
    size = abs(has - should)
    suspects = [gang for gang, leaves in gangs.items() if leaves == size] or [*gangs] or [NOBODY]
    for gang in suspects[:SUSPECTS] if size else ():
        yield _drift(gang, QUOTA, f"{owner}, {leaf}, priority {priority}", has, should)


def _of_users(users: Mapping[Binding, int], pods: Mapping[Binding, int]) -> Steps:
    for number, (binding, has) in enumerate(users.items(), 1):
        should = pods.get(binding, 0)
        if has != should or not (has or binding.quota is None):
            yield _drift(NOBODY, CELLS, f"{binding.cell.address}, users", has, should)
        if number % COUNTED == 0:
            yield None


def _spare(state: State, pool: Pool, chain: Chain) -> Steps:
    """What a chain has to spare, by its definition (`Buddy`), from the leaves in no bound cell."""
    found, open_ = state.buddies[chain.name].spare(), [slot.open for slot in pool.slots]
    owed = [0] * len(found)
    for quota in (each for quotas in state.quotas.values() for each in quotas):
        if quota.chain is chain:
            owed[quota.level] += quota.left
    yield None
    counts, left = (yield from _free(pool, chain, open_)), 0
    for level in range(chain.top, -1, -1):
        times = chain.counts[level + 1] if level < chain.top else 1
        left, has = counts[level] + times * left - owed[level], found[level]
        where = f"{chain.name}, to spare at level {level}"
        if has != left:
            yield _drift(NOBODY, CELLS, where, has, left)
        if left < 0:  # not all that is owned can be had
            yield _drift(NOBODY, CELLS, where, left, 0)


def _free(
    pool: Pool, chain: Chain, open_: Sequence[int]
) -> Generator[Drift | None, None, list[int]]:
    """How many of the largest complete cells in which nothing is bound each level has."""
    counts, free = [0] * len(chain.types), set[Cell]()
    for number, (slot, mask) in enumerate(zip(pool.slots, open_, strict=True), 1):
        assert slot.fixed is not None
        if slot.fixed.cell.is_complete and mask == slot.shape.full:
            free.add(slot.fixed.cell)
        else:
            for part in slot.shape.whole(mask):
                counts[part.level] += 1
        if number % COUNTED == 0:
            yield None
    for level in range(chain.node_level + 1, chain.top + 1):
        for cell in chain.cells[level]:
            if cell.is_complete and free.issuperset(cell.children):
                free.difference_update(cell.children)
                free.add(cell)
            yield None
    for cell in free:
        counts[cell.level] += 1
    return counts
