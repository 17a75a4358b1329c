"""Why gangs wait: the first overlay under which the first of a class would start.

Example: a gang of 4 pods waits, and a node is bad. Its quota is enough, and nothing is reserved for
gangs before it. In a trial in which all nodes are healthy it fits: it waits for `health`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from scheduler.domain.core.attempt import may_be_opportunistic, places_of, short_of
from scheduler.domain.core.conditions import heal, unwell
from scheduler.domain.core.costs import Costs
from scheduler.domain.core.fit import ORDER, QUOTA, claim
from scheduler.domain.core.interface import HEALTH, PREEMPTING
from scheduler.domain.core.lend import lender_of
from scheduler.domain.core.model import Reason
from scheduler.domain.core.node_models import NEVER
from scheduler.domain.core.nodes import Node, Phase, Workload
from scheduler.domain.core.owning import pin_owner
from scheduler.domain.core.queue import Sizes, WorkloadClass
from scheduler.domain.core.records import Records, Reservation
from scheduler.domain.core.reserve import lift_all
from scheduler.domain.core.shortage import Shortage
from scheduler.domain.core.state import State
from scheduler.domain.core.views import When
from scheduler.domain.core.wording import amount_of, counted, wanted_of, words_of

SHAPE, RESOURCE, RESERVATION = "shape", "resource", "reservation"
LENDER = "lender"
KEPT_UNTIL = "keptUntil"

NODES_NAMED = 5

NODES_HEALED = 128
"""Nodes of which it is asked what if they were healthy: the lowest of those that are not."""

Heads = Mapping[WorkloadClass, Workload]
"""Classes, each with its first."""

Reasons = dict[WorkloadClass, Reason]


class _Asks:
    """A question about classes, asked as seldom as can be: what fits also does if it is smaller,
    what does not neither does if it is larger.
    """

    def __init__(self, ask: Callable[[Workload], bool]) -> None:
        self._ask = ask
        self._yes, self._no = Sizes(), Sizes()

    def fits(self, waiting: WorkloadClass, head: Workload) -> bool:
        """The class's first would fit."""
        if self._no.has_easier(waiting):
            return False
        if self._yes.has_harder(waiting):
            return True
        fits = self._ask(head)
        (self._yes if fits else self._no).add(waiting)
        return fits


def reasons(
    state: State,
    heads: Heads,
    firsts: Mapping[WorkloadClass, str],
    reservations: Collection[Reservation],
    costs: Costs,
) -> Reasons:
    """Why classes wait whose first could not be placed. ``firsts``: gangs that they may not pass.
    Nothing is changed.
    """
    by_owner: dict[str | None, dict[WorkloadClass, Workload]] = {}
    for each, head in heads.items():
        by_owner.setdefault(each.owner, {})[each] = head
    found: Reasons = {}
    for owner, some in by_owner.items():
        kept = [each for each in reservations if each.workload.owner == owner]
        with state.trial():
            lift_all(state, kept)
            found |= _Explainer(state, costs.copy()).reasons(some, firsts, kept)
    return found


class _Explainer:
    """Explains classes of one owner, with nothing reserved for its gangs. ``costs``: its own, as
    they note when somebody is to be tried again.
    """

    def __init__(self, state: State, costs: Costs) -> None:
        self._state = state
        self._costs = costs
        self._most: tuple[float, ...] | None = None

    def reasons(
        self, heads: Heads, firsts: Mapping[WorkloadClass, str], kept: Sequence[Reservation]
    ) -> Reasons:
        """The reason of each."""
        found: Reasons = {}
        rest: dict[WorkloadClass, Workload] = {}
        alone = _Asks(self._starts)
        for each, head in heads.items():
            before = [other for other in kept if self._holds_back(head, other)]
            short = None if may_be_opportunistic(head) else short_of(self._state, head)
            if each in firsts and alone.fits(each, head):
                found[each] = _order(head, firsts[each])
            elif before and alone.fits(each, head):
                found[each] = _reservation(head, before)
            elif head.parent is not None and (lender := lender_of(head)) is not None:
                found[each] = _of_lender(head, lender)
            elif short is not None:
                found[each] = quota(head, short)
            else:
                rest[each] = head
        healthy, bare = self._starting_if_healthy(rest), _Asks(self._starts_bare)
        for each, head in rest.items():
            if each in healthy:
                found[each] = _health(head, unwell(self._state))
            elif (short := short_of(self._state, head)) is not None:
                found[each] = quota(head, short)
            else:
                lacks_more = _wants_more(head) and bare.fits(each, head)
                room = self._resource(head) if lacks_more else _shape(head, *self._free(head))
                found[each] = self._with_protected(head, room)
        return {
            each: reason if each in firsts else with_lenders(heads[each], reason)
            for each, reason in found.items()
        }

    def _holds_back(self, head: Workload, other: Reservation) -> bool:
        """The reservation is of a gang before it, where one of its pods could be."""
        return not self._costs.goes_before(head, other) and any(
            want.least(pool.models) != NEVER for want, _ in head.wants for pool in other.pools
        )

    def _starts(self, head: Workload) -> bool:
        """It would be placed, or others would leave for it."""
        return bool(places_of(self._state, head, (), self._costs))

    def _starts_bare(self, head: Workload) -> bool:
        """The same if its pods wanted nothing but their GPUs."""
        wants = tuple(
            (self._state.want(want.kind.gpus_alone(), is_charged=want.is_charged), pods)
            for want, pods in head.wants
        )
        return self._starts(replace(head, wants=wants))

    def _starting_if_healthy(self, heads: Heads) -> set[WorkloadClass]:
        nodes = unwell(self._state)[:NODES_HEALED] if heads else []
        if not nodes:
            return set()
        with self._state.trial():
            heal(self._state, nodes)
            asks = _Asks(self._starts)
            return {each for each, head in heads.items() if asks.fits(each, head)}

    def _free(self, head: Workload) -> tuple[int, int]:
        """Free GPUs of types that its pods may have, and the most of them on one node."""
        pools = [
            self._state.idle(pool, When.NOW).free()
            for pool in self._state.pools
            if any(not want.gpu_types or pool.gpu_type in want.gpu_types for want, _ in head.wants)
        ]
        return sum(free for free, _ in pools), max((most for _, most in pools), default=0)

    def _resource(self, head: Workload) -> Reason:
        """There are such GPUs, without what its pods want beside them. Of pods without GPUs: what
        no node has left.
        """
        text, numbers = f"{_lacks_more(head)}.", wanted_of(head.kinds)
        if not any(want.gpus for want, _ in head.wants):
            most = self._most_left(head.gang.allowed_nodes)
            for want, _ in head.wants:
                for name, amount in self._state.resources.named(want.kind).items():
                    left = most[self._state.resources.index(name)]
                    if amount > left:
                        what = amount_of(amount, name)
                        text = (
                            f"{words_of(head.kinds)}: no node has {what} left, the most is {left}."
                        )
                        return Reason(RESOURCE, text, numbers)
        return Reason(RESOURCE, text, numbers)

    def _most_left(self, allowed: Collection[str] | None) -> tuple[float, ...]:
        """Of each resource, what the open node has left that has most."""
        if allowed is not None or self._most is None:
            nodes = self._state.nodes
            found = [nodes[name] for name in (nodes if allowed is None else allowed)]
            rows = [_left(node) for node in found if node.is_open]
            none = [0] * len(self._state.resources.names)
            most = tuple(map(max, zip(none, *rows, strict=True)))
            if allowed is not None:
                return most
            self._most = most
        return self._most

    def _with_protected(self, head: Workload, reason: Reason) -> Reason:
        """The same, and how many are protected from it, if it starts when they are no more."""
        there = {
            other
            for place in claim(self._state, head)
            for other, (gpus, charge) in place.slot.pods.items()
            if not place.charge or (gpus | charge) & place.charge
        }
        is_protected = bool(self._costs.protected(head, there))
        if not (is_protected or self._costs.has_budget):
            return reason
        inside = {record.workload for record in self._costs.records.charged_to(head.owner)}
        ends = self._costs.protected(head, inside | there, is_inside=is_protected)
        if not ends or not places_of(self._state, head, (), self._costs.after(ends)):
            return reason
        if not is_protected:
            text = f"{reason.text} More gangs would be preempted than preemptionsPerHour allows."
            return Reason(reason.code, text, {**reason.numbers, "protected": len(ends)})
        gangs, are = counted(len(ends), "gang"), "is" if len(ends) == 1 else "are"
        at = min(ends)
        until = "" if at == inf else f", until {at:.15g} at the least"
        text = f"{reason.text} {gangs} of lower priority {are} protected from it{until}."
        numbers = {**reason.numbers, "protected": len(ends)}
        if until:
            numbers["protectedUntil"] = at
        return Reason(reason.code, text, numbers)


# Words.


def unsettled(refusal: Reason) -> Reason:
    """It would be refused, were all nodes known."""
    return Reason(HEALTH, f"Not all nodes may be known yet. {refusal.text}", refusal.numbers)


def quota(head: Workload, short: Shortage) -> Reason:
    """Its virtual cluster has too few cells left."""
    gang, which, left = head.gang, "", max(short.spare, 0)
    numbers = wanted_of(head.kinds) | {"cellsWanted": short.leaves, "cellsLeft": left}
    if short.owner != head.owner:
        pin = short.owner.removeprefix(pin_owner(""))
        which, numbers["pin"] = f" in the pin {pin}", pin
    elif any(short.types == want.gpu_types for want, _ in head.wants):
        which = f" of type {' or '.join(short.types)}"
        numbers["gpuType"] = ", ".join(short.types)
    begins = f"{words_of(head.kinds)}: "
    if may_be_opportunistic(head):
        begins = f"{_lacks_more(head)}, and "
    text = (
        f"{begins}{gang.virtual_cluster} has {counted(left, 'GPU cell')}{which}"
        f" beside those of gangs of priority {gang.priority} or higher, {short.leaves}"
        f" {'is' if short.leaves == 1 else 'are'} needed."
    )
    return Reason(QUOTA, text, numbers)


def _of_lender(head: Workload, lender: str) -> Reason:
    """It grows in the quota that its gang has borrowed."""
    text = f"{words_of(head.kinds)}: {lender}, in whose quota it is, lends it no more now."
    return Reason(QUOTA, text, wanted_of(head.kinds) | {LENDER: lender})


def _order(head: Workload, first: str) -> Reason:
    text = f"Nobody may pass {first}, which comes before it."
    return Reason(ORDER, text, wanted_of(head.kinds) | {"for": first})


def _reservation(head: Workload, before: Sequence[Reservation]) -> Reason:
    gang, at = before[0].workload.gang, before[0].starts_at
    numbers = wanted_of(head.kinds) | {"for": gang.id}
    if before[0].is_kept:
        kept = f"Cells are kept until {at:.15g} for its next attempt."
        text = f"A failure or a drain took nodes of a job of {gang.user}. {kept}"
        return Reason(RESERVATION, text, numbers | {KEPT_UNTIL: at})
    gangs = counted(len(before), "gang")
    text = f"Cells are kept for {gangs} before it ({gang.id}, from {at:.15g} on)."
    return Reason(RESERVATION, text, numbers | {"startsAt": at})


def _health(head: Workload, bad: Sequence[Node]) -> Reason:
    nodes = "1 node is" if len(bad) == 1 else f"{len(bad)} nodes are"
    names = ", ".join(node.name for node in bad[:NODES_NAMED])
    text = (
        f"It would be placed if all nodes were usable: {nodes} not ({names})."
        " `muster cluster` and `muster nodes` say why."
    )
    return Reason(HEALTH, text, wanted_of(head.kinds) | {"badNodes": len(bad)})


def _left(node: Node) -> tuple[float, ...]:
    totals = node.slots[0].model.totals
    return tuple(
        inf if total is None else left for total, left in zip(totals, node.left, strict=True)
    )


def _wants_more(head: Workload) -> bool:
    return any(any(want.amounts) for want, _ in head.wants)


def _lacks_more(head: Workload) -> str:
    words = words_of(head.kinds)
    if any(want.gpus for want, _ in head.wants):
        beside = "not with enough CPU, memory, ports or others beside them"
        return f"{words}: there are such GPUs, but {beside}"
    return f"{words}: the nodes have not enough CPU, memory, ports or other resources left"


def _shape(head: Workload, free: int, most: int) -> Reason:
    """So many GPUs are free, the most on one node: too few, or they do not lie together."""
    numbers = wanted_of(head.kinds)
    wanted = sum(want.gpus * len(pods) for want, pods in head.wants)
    if not wanted:
        return Reason(SHAPE, f"{words_of(head.kinds)}: no node takes it now.", numbers)
    text = f"{counted(free, 'such GPU')} {'is' if free == 1 else 'are'} free"
    if free > 1:
        text += f", at most {most} on one node"
    cells = "" if head.owner is None else f" in cells that {head.gang.virtual_cluster} may have"
    if cells and most >= wanted:
        text += f", but not{cells}"
    elif free >= wanted:
        text += f", but they do not lie together as wanted{cells}"
    text = f"{words_of(head.kinds)}: {text}."
    return Reason(SHAPE, text, numbers | {"gpusFree": free, "gpusFreeOnOneNode": most})


def with_lenders(head: Workload, reason: Reason) -> Reason:
    """The same of a gang to which nobody lends, as it was tried."""
    has_pin = any(want.kind.pin for want, _ in head.wants)
    if not head.gang.is_borrowing or has_pin:
        return reason
    return replace(reason, text=f"{reason.text} No other virtual cluster lends it room.")


def with_kept(reason: Reason, reservation: Reservation | None) -> Reason:
    """The same, and until when cells of its job's last attempt are kept for it, if some are."""
    if reservation is None or not reservation.is_kept:
        return reason
    if KEPT_UNTIL in reason.numbers:  # it waits for this moment of another job
        return replace(reason, text=f"{reason.text} Cells of its last attempt are kept for it.")
    until = reservation.starts_at
    text = f"{reason.text} Cells of its last attempt are kept until {until:.15g} for it."
    return Reason(reason.code, text, {**reason.numbers, KEPT_UNTIL: until})


# Preemptions.


def preempting(records: Records, workload: Workload) -> Reason:
    """Others have to leave the places of a nominated gang."""
    others = _awaited(workload)
    whole = [each for each in others if each.parent is None]
    parts = [each for each in others if each.is_surplus and each.parent not in others]
    ends = [at for each in others if (at := records.of(each).leaves_by) is not None]
    until, text = max(ends, default=None), "It starts when what is reserved for it is free."
    if until is not None:
        have = "has" if len(whole) + len(parts) == 1 else "have"
        text = (
            f"It starts when {_leaving(whole, parts)} {have} left, by {until:.15g} at the latest."
        )
    numbers = wanted_of(workload.kinds) | {"victims": len(whole), "until": until}
    return Reason(PREEMPTING, text, numbers | ({"surplusPods": len(parts)} if parts else {}))


def _awaited(workload: Workload) -> list[Workload]:
    """Who leaves its places: its GPUs, or a node that is short of something else."""
    found: dict[Workload, None] = {}
    for place in workload.places:
        is_short = min(place.slot.node.left, default=0) < 0
        for slot in place.slot.node.slots if is_short else (place.slot,):
            for other, (gpus, _) in slot.pods.items():
                if other.phase is Phase.PREEMPTED and (is_short or gpus & place.gpus):
                    found[other] = None
    return list(found)


def _leaving(whole: Sequence[Workload], parts: Sequence[Workload]) -> str:
    found = [counted(len(whole), "gang")] if whole else []
    if parts:
        elastic = len({each.parent for each in parts})
        found.append(f"{counted(len(parts), 'pod')} of {counted(elastic, 'elastic gang')}")
    return " and ".join(found)


DRAIN = Reason("drain", "Its node is drained.", {})


def preempted(victim: Workload, asking: Workload) -> Reason:
    """Why a gang leaves for another, which has its places."""
    name, vc, gpus = asking.gang.id, asking.gang.virtual_cluster, {"gpus": victim.gpus}
    if victim.is_surplus:
        text = f"The gang {name} needs these cells, and this one can do without the pod."
        return Reason("surplus", text, gpus)
    if (lender := lender_of(victim)) is not None:
        text = f"{lender} needs these cells, which this one has borrowed, for {name}."
        return Reason("reclaimed", text, gpus)
    if victim.owner is not None and victim.priority < victim.gang.priority:
        text = f"Its cells were kept for the gang {name}, and it has not ended in time."
        return Reason("reservation", text, gpus)
    if victim.owner is not None:
        own, others = victim.gang.priority, asking.gang.priority
        text = f"The gang {name} of the same virtual cluster has priority {others}, this one {own}."
        return Reason("priority", text, {"priority": own, "forPriority": others})
    text = f"The gang {name} has a guarantee of {vc} on these GPUs."
    taken = [
        each
        for each in asking.places
        if any(p.slot is each.slot and p.gpus & each.charge for p in victim.places)
    ]
    if taken and not any(each.gpus for each in taken):
        text = (
            f"The gang {name} has a guarantee of {vc} on the CPU and memory that belong to these"
            " GPUs."
        )
    if not taken:
        text = (
            f"The gang {name} of {vc}, which is guaranteed, wants CPU, memory, ports or other"
            " resources that this one uses."
        )
    return Reason("guarantee", text, gpus)
