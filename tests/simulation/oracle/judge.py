"""Whether a decision is the one that the definitions make: each that is not is one sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scheduler.domain.core.model import Gang, GangClass, Preempted

from oracle import choices, guests, nearness
from oracle.state import Record, State
from oracle.views import Terms, look

Types = tuple[str | None, ...]


@dataclass(frozen=True)
class Bill:
    """Whom a place cost."""

    victims: Sequence[Preempted] = ()
    downgraded: Sequence[str] = ()
    cancelled: Sequence[str] = ()


@dataclass(frozen=True)
class Judge:
    """Judges decisions about gangs in the state in which they were made."""

    state: State
    now: float
    judges_nearness: bool = True

    def placed(self, gang: Gang, record: Record, bill: Bill) -> Iterator[str]:
        """It starts at once."""
        state, name = self.state, gang.id
        others = [r for r in state.records.values() if r.gang.id not in bill.cancelled]
        busy = {leaf for other in others for leaf in state.leaves_of(other)}
        if busy & set(state.leaves_of(record)):
            yield f"{name} gets GPUs that are not free: {record.places}"
        yield from self.usable(gang, record)
        if choices.may_be_opportunistic(gang) and record.gang_class is GangClass.OPPORTUNISTIC:
            yield from self._as_opportunistic(gang, record, bill)
            return
        step = choices.cheapest_step(state, gang)
        expected = "downgrades" if bill.downgraded else "nobody"
        if bill.cancelled:
            expected = "victims"
        if step != expected:
            yield f"expected: {name} at the cost {step}, not {expected}"
        if bill.cancelled:
            return
        terms = choices.terms_of(state, gang, "downgrades, now" if bill.downgraded else "nobody")
        found = choices.find(state, gang, terms)
        types = self._types(record, gang)
        if found is None:
            yield f"{name} is placed, and there is no place for it under {terms}"
        elif found.types != types:
            yield f"expected: {name} on types {found.types}, not {types}"
        elif self.judges_nearness:
            terms = replace(terms, downgraded=frozenset(bill.downgraded))
            if choices.find(state, gang, terms, types):  # else cells were exchanged to make room
                yield from self._nearness(gang, record, terms, types)

    def _as_opportunistic(self, gang: Gang, record: Record, bill: Bill) -> Iterator[str]:
        """It wants no GPU, and its virtual cluster has no place for it at any cost."""
        name = gang.id
        if bill.downgraded or bill.cancelled:
            yield f"{name} is placed as an opportunistic gang, and others pay for it: {bill}"
        step = choices.cheapest_step(self.state, gang)
        if step is not None:
            yield f"expected: {name} in its virtual cluster at the cost {step}"
        terms = choices.AS_OPPORTUNISTIC
        if choices.find(self.state, gang, terms) is None:
            yield f"{name} is placed, and there is no place for it under {terms}"
        elif self.judges_nearness:
            yield from nearness.without_gpus(look(self.state, gang, terms), record)

    def usable(self, gang: Gang, record: Record) -> Iterator[str]:
        """Only healthy machines that take pods, and that it allows."""
        if not is_place_usable(self.state, record):
            yield f"{gang.id} gets GPUs that are not usable: {record.places}"
        nodes = {place.node for place in record.places.values()}
        if gang.allowed_nodes is not None and not nodes <= gang.allowed_nodes:
            yield f"{gang.id} may not be on {nodes - gang.allowed_nodes}"

    def _types(self, record: Record, gang: Gang) -> Types:
        hardware = self.state.hardware
        types: list[str | None] = []
        for role in gang.roles:
            places = [record.places[pod] for pod in role.pods if pod in record.places]
            first = next((place for place in places if place.gpus), None)
            leaf = None if first is None else hardware.leaf_at[first.node, first.gpus[0]]
            types.append(None if leaf is None else hardware.leaf_type(leaf))
        return tuple(types)

    def _nearness(self, gang: Gang, record: Record, terms: Terms, types: Types) -> Iterator[str]:
        hardware = self.state.hardware
        pods = [pod for role in gang.roles for pod in role.pods]
        at = self.state.leaves_of(record)
        if len(pods) == 1 and at:
            level = hardware.lowest_common_level(at)
            best = choices.lowest_level(self.state, gang, terms, types)
            if level != best and not record.places[pods[0]].charged:
                yield f"expected: {gang.id} at level {best}, not {level}"
        elif len(gang.roles) == 1 and at and gang.priority >= 0:
            racks = len({hardware.rack_of(leaf) for leaf in at})
            best = choices.fewest_racks(self.state, gang, terms, types, racks)
            is_shared = any(place.charged for place in record.places.values())
            if racks != best and (best == 1 or not is_shared):
                yield f"expected: {gang.id} in {best} racks, not {racks}"
            yield from self._group(gang, record, terms, types)
        view = look(self.state, gang, terms)
        yield from nearness.levels(view, record)
        yield from nearness.without_gpus(view, record)
        if at and not choices.group_racks(self.state, gang):
            if len(pods) == 1:
                yield from nearness.bound_first(view, record)
            if gang.priority < 0 and len(gang.roles) == 1:
                yield from guests.where_guaranteed_are_not(view, record)

    def _group(self, gang: Gang, record: Record, terms: Terms, types: Types) -> Iterator[str]:
        """Racks of its group come first, if they can hold all."""
        hardware, state = self.state.hardware, self.state
        near = choices.group_racks(state, gang)
        for rack in sorted(near):
            only = frozenset(hardware.leaves(rack))
            if choices.find(state, gang, replace(terms, only=only), types):
                racks = {hardware.rack_of(leaf) for leaf in state.leaves_of(record)}
                if len(racks) != 1 or not racks <= near:
                    yield f"expected: {gang.id} in the rack {rack} of its group"
                return

    def published(self, gang: Gang, record: Record, bill: Bill) -> Iterator[str]:
        """Its place is reserved, and others leave."""
        state, name = self.state, gang.id
        yield from self.usable(gang, record)
        victims = [state.records[t.gang] for t in bill.victims if t.gang in state.records]
        if len(victims) < len(bill.victims):
            yield f"{name} preempts a gang that has started in the same cycle"
            return
        yield from self._victims(gang, record, bill)
        step = choices.cheapest_step(state, gang)
        expected = "downgrades" if bill.downgraded else "nobody more"
        if bill.victims or bill.cancelled:
            expected = "victims"
        if step != expected:
            yield f"expected: {name} at the cost {step}, not {expected}"
        lost = Terms(gone=frozenset(bill.cancelled))
        is_known = len(bill.cancelled) == 1  # of several, some may have been taken by others
        if is_known and choices.find(state, gang, lost):
            yield f"{name} waits for others to leave beside GPUs that are free"
        paid = choices.price_of(state, gang, victims, self.now)
        best = choices.cheapest_victims(state, gang, self.now, self._types(record, gang))
        if best is None or paid <= best:
            return  # Too many sets; or cells of a gang that stays were exchanged to make room.
        if paid.protected != best.protected:
            yield f"{name} costs {paid.protected} GPUs of protected victims; it could be {best}"
        elif paid.gpus != best.gpus:
            yield f"{name} costs {paid.gpus} GPUs of victims; it could be {best}"
        else:
            yield f"{name} costs {paid} of work; it could be {best}"

    def _victims(self, gang: Gang, record: Record, bill: Bill) -> Iterator[str]:
        """Only those that may be victims, and that use something of the place or of the quota."""
        allowed = {other.gang.id for other in choices.candidates(self.state, gang)}
        machines = {place.node for place in record.places.values()}
        for told in bill.victims:
            if told.gang not in allowed:
                yield f"{told.gang} is preempted for {gang.id} and may not be"
                continue
            victim = self.state.records[told.gang]
            if victim.is_guaranteed:
                continue
            if not machines & {place.node for place in victim.places.values()}:
                yield f"{told.gang} is preempted for {gang.id} and not in its place"

    def waits(self, gang: Gang) -> Iterator[str]:
        """There is no place for it at any cost."""
        state, name = self.state, gang.id
        if choices.fits(state, gang):
            step = choices.cheapest_step(state, gang) or "nobody, as an opportunistic gang"
            yield f"{name} waits and could be placed at the cost of {step}"
        elif choices.is_refused(state, gang):
            yield f"{name} waits and should be refused"

    def code(self, gang: Gang, may_fit: bool = True) -> str | None:
        """Why it is to be told to wait; None: not known, or it should not wait at all.

        ``may_fit`` False: that it fits nowhere is known.
        """
        if may_fit and choices.fits(self.state, gang):
            return None
        return choices.code_of(self.state, gang)

    def refused(self, gang: Gang) -> Iterator[str]:
        """No healthy, empty cluster could hold it."""
        if not choices.is_refused(self.state, gang):
            yield f"expected: {gang.id} is not refused"


def is_place_usable(state: State, record: Record) -> bool:
    """Whether all of a place is healthy and takes pods."""
    machines = {place.node for place in record.places.values()}
    return all(map(state.is_machine_usable, machines)) and all(
        map(state.is_usable, state.charged_by(record))
    )
