"""What the definitions choose for one gang: whether, at whose cost, how near, and why not."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations, product

from scheduler.domain.core.model import OPPORTUNISTIC, Gang, Role

from oracle.fitting import Fit, Search, Want
from oracle.hardware import Hardware
from oracle.quota import shortage
from oracle.state import Record, State, is_lazy
from oracle.told import growth_of
from oracle.views import Terms, View, look

CANDIDATES = 8
"""Gangs among which all sets of victims are tried."""


@dataclass(frozen=True)
class Found:
    """A fit with the types of GPU that the roles got, in the view in which it was found."""

    fit: Fit
    types: tuple[str | None, ...]
    view: View
    wants: tuple[Want, ...]


def type_choices(hardware: Hardware, roles: tuple[Role, ...]) -> Iterator[tuple[str | None, ...]]:
    """The GPU types of the roles, what is preferred first."""
    options: list[tuple[str | None, ...]] = []
    for role in roles:
        if role.kind.gpus == 0 and not role.kind.gpu_types:
            options.append((None,))
        else:
            known = hardware.gpu_types()
            options.append(tuple(t for t in (role.kind.gpu_types or known) if t in known))
    yield from product(*options)


def find(
    state: State,
    gang: Gang,
    terms: Terms,
    types: tuple[str | None, ...] | None = None,
    roles: tuple[Role, ...] | None = None,
) -> Found | None:
    """A fit under terms, of the first choice of types that has one (or of that choice)."""
    view = look(state, gang, terms)
    roles = gang.roles if roles is None else roles
    choices = type_choices(state.hardware, roles) if types is None else [types]
    for choice in choices:
        wants = tuple(
            Want(pod, role.kind, gpu_type)
            for role, gpu_type in zip(roles, choice, strict=True)
            for pod in role.pods
        )
        search = Search(view, list(wants))
        if search.run():
            assert search.found is not None
            return Found(search.found, choice, view, wants)
    return None


def leaving(state: State) -> frozenset[str]:
    """Gangs that were told to leave and are still there."""
    return frozenset(name for name, record in state.records.items() if record.is_leaving)


def lazy_ones(state: State, gang: Gang) -> frozenset[str]:
    """Gangs that may be downgraded for this one: that have nothing reserved, to grow by either."""
    return frozenset(
        record.gang.id
        for record in below(state, gang)
        if record.is_guaranteed
        and not record.is_reserved
        and growth_of(record.gang.id) not in state.records
        and is_lazy(state, record.gang)
    )


def below(state: State, gang: Gang) -> list[Record]:
    """Gangs of the same virtual cluster with cells and a lower priority, that are not leaving."""
    return [
        record
        for record in state.records.values()
        if record.is_guaranteed
        and not record.is_leaving
        and record.gang.virtual_cluster == gang.virtual_cluster
        and record.gang.priority < gang.priority
    ]


def candidates(state: State, gang: Gang) -> list[Record]:
    """Gangs that may be told to leave for this one."""
    others = [
        record
        for record in state.records.values()
        if not (record.is_guaranteed or record.is_leaving or is_spared(record, gang))
    ]
    return [*others, *(each for each in below(state, gang) if not state.is_protected(each))]


def is_spared(record: Record, gang: Gang) -> bool:
    """Whether a gang without cells has no lower priority than this one of its virtual cluster."""
    other = record.gang
    is_as_high = other.priority >= gang.priority
    return not record.is_guaranteed and is_as_high and other.virtual_cluster == gang.virtual_cluster


def terms_of(state: State, gang: Gang, step: str) -> Terms:
    """What is thought gone or downgraded at a step of "whom it costs"."""
    match step:
        case "nobody":
            return Terms()
        case "nobody more":
            return Terms(gone=leaving(state))
        case "downgrades, now":
            return Terms(downgraded=lazy_ones(state, gang))
        case "downgrades":
            return Terms(gone=leaving(state), downgraded=lazy_ones(state, gang))
        case "victims":
            victims = frozenset(record.gang.id for record in candidates(state, gang))
            return Terms(leaving(state) | victims, lazy_ones(state, gang))
        case _:
            raise ValueError(step)


STEPS_OF_COST = ("nobody", "nobody more", "downgrades", "victims")


def cheapest_step(state: State, gang: Gang) -> str | None:
    """The first step of "whom it costs" that succeeds."""
    if gang.priority == OPPORTUNISTIC:
        return "nobody" if find(state, gang, Terms()) else None
    for step in STEPS_OF_COST:
        if find(state, gang, terms_of(state, gang, step)):
            return step
    return None


def fits(state: State, gang: Gang) -> bool:
    """Whether any step of "whom it costs" succeeds (then the last does), or it could be placed as
    an opportunistic one.
    """
    last = "nobody" if gang.priority == OPPORTUNISTIC else STEPS_OF_COST[-1]
    if find(state, gang, terms_of(state, gang, last)):
        return True
    return may_be_opportunistic(gang) and find(state, gang, AS_OPPORTUNISTIC) is not None


AS_OPPORTUNISTIC = Terms(as_opportunistic=True)


def may_be_opportunistic(gang: Gang) -> bool:
    """Whether it is placed as an opportunistic gang where its virtual cluster has no place for it:
    if no pod of it wants a GPU. What a guaranteed gang grows by is guaranteed.
    """
    is_growth = gang.id.endswith("+")
    return gang.priority > OPPORTUNISTIC and is_without_gpus(gang) and not is_growth


@dataclass(frozen=True, order=True)
class Price:
    """What a set of victims costs: GPUs of those that are protected, and such gangs without any;
    GPUs, gangs without any; GPUs (of such a gang 1) times ranks above opportunistic gangs, and
    times the milliseconds that are lost.
    """

    protected: int
    protected_without: int
    gpus: int
    without: int
    ranks: int
    lost: int


def price_of(state: State, gang: Gang, victims: Iterable[Record], now: float) -> Price:
    """What it costs that these leave for the gang."""
    protected = protected_without = gpus = without = ranks = lost = 0
    for record in victims:
        if record.started_at is not None:
            own = len(state.leaves_of(record))
            gpus, without = gpus + own, without + (not own)
            if state.is_protected(record):
                protected, protected_without = protected + own, protected_without + (not own)
            ranks += (own or 1) * (record.gang.priority - OPPORTUNISTIC)
            lost += (own or 1) * (round(now * 1000) - round(saved_at(record, now) * 1000))
    return Price(protected, protected_without, gpus, without, ranks, lost)


def saved_at(record: Record, now: float) -> float:
    """Up to when the gang's work is saved."""
    began, every_s = record.started_at, record.gang.checkpoint_s
    assert began is not None
    periods = 0.0 if every_s is None else (now - began) // every_s * every_s
    return max(began + periods, began if record.checkpointed_at is None else record.checkpointed_at)


def prices(state: State, gang: Gang, now: float) -> Iterator[tuple[Price, Terms]]:
    """All sets of victims, the cheapest first: what is only reserved costs nothing, nor does who
    loses its cells only.
    """
    some = candidates(state, gang)
    free = frozenset(record.gang.id for record in some if record.is_reserved)
    some = [record for record in some if not record.is_reserved]
    sets = chain.from_iterable(combinations(some, size) for size in range(len(some) + 1))
    priced = [
        (price_of(state, gang, some, now), frozenset(r.gang.id for r in some)) for some in sets
    ]
    priced.sort(key=lambda each: (each[0], len(each[1])))
    lazy = lazy_ones(state, gang)
    for price, victims in priced:
        yield price, Terms(leaving(state) | free | victims, lazy - victims)


def cheapest_victims(
    state: State, gang: Gang, now: float, types: tuple[str | None, ...] | None = None
) -> Price | None:
    """The least price of victims; None: too many candidates to try all sets."""
    if len(candidates(state, gang)) > CANDIDATES:
        return None
    found = (price for price, terms in prices(state, gang, now) if find(state, gang, terms, types))
    return next(found, None)


def is_refused(state: State, gang: Gang) -> bool:
    """Whether no healthy, empty cluster of this configuration could hold it."""
    known = state.hardware.refused
    if gang not in known:
        known[gang] = _fits_no_empty_cluster(state, gang)
    return known[gang]


def _fits_no_empty_cluster(state: State, gang: Gang) -> bool:
    pins = {role.kind.pin for role in gang.roles if role.kind.pin is not None}
    if any(state.hardware.pin_owner.get(pin) != gang.virtual_cluster for pin in pins):
        return True
    if gang.id.endswith("+"):  # what it grows by is too much only while it runs: it waits
        known = state.hardware.gpu_types()
        wishes = [set(role.kind.gpu_types) for role in gang.roles if role.kind.gpu_types]
        return any(wish.isdisjoint(known) for wish in wishes)
    empty = state.emptied()
    if find(empty, gang, Terms()):
        return False
    return not (may_be_opportunistic(gang) and find(empty, gang, AS_OPPORTUNISTIC))


def is_without_gpus(gang: Gang) -> bool:
    """Whether no pod of it wants a GPU."""
    return all(role.kind.gpus == 0 for role in gang.roles)


def code_of(state: State, gang: Gang) -> str:
    """Why a gang waits that fits nowhere."""
    out_of_use = state.bad_nodes | state.bad_gpus | state.cordoned | state.drained
    if out_of_use and fits(state.healed(), gang):
        return "health"
    if gang.priority > OPPORTUNISTIC and shortage(state, gang):
        return "quota"
    widest = "nobody" if gang.priority == OPPORTUNISTIC else "victims"
    plain = terms_of(state, gang, widest)
    shaped = replace(plain, has_shape_alone=True)
    return "resource" if find(state, gang, shaped) else "shape"


def lowest_level(state: State, gang: Gang, terms: Terms, types: tuple[str | None, ...]) -> int:
    """The smallest level at which all leaves fit that a gang of one pod needs."""
    hardware = state.hardware
    levels = range(1, 1 + max(hardware.level(node) for node in hardware.node_cells()))
    for level in levels:
        for cell in hardware.cells:
            if hardware.level(cell.number) != level or hardware.leaf_type(cell.number) != types[0]:
                continue
            only = frozenset(hardware.leaves(cell.number))
            if find(state, gang, replace(terms, only=only), types):
                return level
    raise AssertionError("It fits, but in no node")


def fewest_racks(
    state: State, gang: Gang, terms: Terms, types: tuple[str | None, ...], at_most: int
) -> int:
    """The least number of racks below ``at_most`` that can hold the gang, else ``at_most``."""
    hardware = state.hardware
    racks = sorted({hardware.rack_of(node) for node in hardware.node_cells()})
    for count in range(1, at_most):
        for some in combinations(racks, count):
            only = frozenset(leaf for rack in some for leaf in hardware.leaves(rack))
            if find(state, gang, replace(terms, only=only), types):
                return count
    return at_most


def group_racks(state: State, gang: Gang) -> set[int]:
    """The racks where pods of it or of its group run."""
    return {
        state.hardware.rack_of(leaf)
        for record in state.records.values()
        if record.gang.id == gang.id.rstrip("+")
        or (gang.group and (record.gang.job, record.gang.group) == (gang.job, gang.group))
        for leaf in state.leaves_of(record)
    }
