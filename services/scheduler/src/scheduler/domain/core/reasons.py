"""Why a gang waits or can never be placed: a code, numbers, and what would have to happen."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf

from scheduler.domain.core.admitting import could_be_placed, may_be_guest
from scheduler.domain.core.borrowing import could_be_lent, may_borrow
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import NO_ONE, OPPORTUNISTIC, Numbers, Reason, Role
from scheduler.domain.core.names import wrong_name
from scheduler.domain.core.passing import first_of, goes_before, out_of_the_way
from scheduler.domain.core.queue import SHAPES_REMEMBERED, Line, key_of, wish_of
from scheduler.domain.core.seeking import Seeker
from scheduler.domain.core.shortages import Shortage, shortage
from scheduler.domain.core.wellness import all_well

HEALTH, QUOTA, SHAPE, RESOURCE, PREEMPTING = "health", "quota", "shape", "resource", "preempting"
RESERVATION, ORDER = "reservation", "order"


class Explainer:
    """Explains lines whose head could not be placed. ``bad``: nodes on which not all is usable."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        unwell = cluster.hardware.unwell
        self.bad = [unwell[number] for number in sorted(unwell)]
        self._known: dict[object, Reason] = {}
        self._lying: dict[object, bool] = {}

    def refusal(self, line: Line) -> Reason | None:
        """Why no healthy, empty cluster of this configuration could hold the line's gangs."""
        cluster, live = self.cluster, self.cluster.gangs[line.waiting[0][1]]
        gang = live.gang
        wrong = wrong_name(cluster.hardware, live)
        if wrong is not None:
            return Reason(*wrong, _wanted(live))
        if self._could_hold(live):
            return None
        where = "the whole cluster" if gang.priority == OPPORTUNISTIC else gang.virtual_cluster
        if gang.allowed_nodes is not None:
            where = f"{where}, on the nodes that it allows,"
        text = (
            f"{_wish(live)} at once: {where} could not hold that, were it healthy and empty."
            " Ask for less."
        )
        return Reason("too-large", text, _wanted(live))

    def _could_hold(self, live: Live) -> bool:
        cluster, gang = self.cluster, live.gang
        if live.pods or live.strangers or live.is_kept_for:
            return True
        _, _, shape, _, _, only, _ = key_of(live)
        is_guest = gang.priority == OPPORTUNISTIC
        key = (live.owner, is_guest, gang.is_borrowing, shape, only)
        found = cluster.can_hold.get(key)
        if found is None:
            found = any(
                self._fits_blank(live, guest)
                for guest in ((True,) if is_guest else (False, True))
                if guest == is_guest or all(kind.costs_nothing for kind, _ in shape)
            ) or could_be_lent(cluster, live)
            if len(cluster.can_hold) >= SHAPES_REMEMBERED:
                cluster.can_hold.clear()
            cluster.can_hold[key] = found
        return found

    def _fits_blank(self, live: Live, is_guest: bool) -> bool:
        owner = None if is_guest else live.owner
        if not is_guest and self._wants_more_than_owned(live):
            return False
        if any(self._are_more_than_fit(role, live.gang.allowed_nodes) for role in live.waiting):
            return False
        seeker = Seeker(self.cluster.blank, live.gang, owner)
        seeker.is_thorough = True
        seeker.search_steps, seeker.looks_left = REFUSAL_STEPS, REFUSAL_LOOKS
        return seeker.could_place(live.waiting)

    def _wants_more_than_owned(self, live: Live) -> bool:
        """It needs more leaves of some GPU types, or of all, than its virtual cluster has of them,
        those of pins aside.
        """
        hardware = self.cluster.blank
        wanted: dict[tuple[str, ...], int] = {}
        for role in live.waiting:
            if role.kind.pin is None:
                count = hardware.demands.least_leaves(role.kind) * len(role.pods)
                every = tuple(hardware.gpu_types)
                for types in {role.kind.gpu_types or every, every}:
                    wanted[types] = wanted.get(types, 0) + count
        owned = hardware.owning.owned
        return any(
            count > sum(owned.get((live.owner, each), 0) for each in types)
            for types, count in wanted.items()
        )

    def _are_more_than_fit(self, role: Role, only: Collection[str] | None) -> bool:
        """A role's pods without GPUs are more than all nodes hold beside GPUs, were they empty."""
        machines, left = self.cluster.blank.machines, len(role.pods)
        if role.kind.gpus or left <= (len(machines) if only is None else len(only)):
            return False
        for name in machines if only is None else machines.keys() & only:
            take = machines[name].sort.take(role.kind)
            if take is not None:
                amounts = zip(take.amounts, machines[name].sort.capacity, strict=True)
                left -= min((most // amount for amount, most in amounts if amount), default=left)
                if left <= 0:
                    return False
        return True

    def reasons(self, lines: Sequence[Line]) -> Iterator[tuple[Line, Reason]]:
        """Why the gangs of each line of one virtual cluster wait: found once for equal wishes."""
        alike = {line: self._what_counts(line) for line in lines}
        one_of_each = {what: line for line, what in alike.items() if what not in self._known}
        for line, reason in self._found(list(one_of_each.values())):
            self._known[alike[line]] = reason
        return ((line, self._known[what]) for line, what in alike.items())

    def _what_counts(self, line: Line) -> object:
        if self.cluster.policy.is_strict:  # the first of them is told something else
            return line
        return wish_of(line)

    def _found(self, lines: Sequence[Line]) -> Iterator[tuple[Line, Reason]]:
        cluster = self.cluster
        kept = cluster.reservations.of(lines[0].key[0]) if lines else ()
        with out_of_the_way(cluster, [*kept]):
            held = [(line, self._held(line)) for line in lines]
            yield from ((line, reason) for line, reason in held if reason is not None)
            for line, reason in self._others([line for line, reason in held if reason is None]):
                live = cluster.gangs[line.waiting[0][1]]
                yield line, with_lenders(live, with_protected(cluster, live, reason))

    def _held(self, line: Line) -> Reason | None:
        """It would be placed if nobody were before it, and nothing were kept for others."""
        cluster, live = self.cluster, self.cluster.gangs[line.waiting[0][1]]
        if live.lender is not None:  # nobody leaves for more of a loan
            return None
        if cluster.policy.is_strict:
            first = first_of(cluster, live)
            if first is live or not could_be_placed(cluster, live):
                return None
            text = f"Nobody may pass {first.id}, which comes before it."
            return Reason(ORDER, text, _wanted(live) | {"for": first.id})
        others = cluster.reservations.of(live.owner)
        before = [each for each in others if not goes_before(live, each)]
        if live.is_guest or not before or not self._would_lie_as_wanted(live):
            return None
        if not could_be_placed(cluster, live):
            return None
        oldest = before[0]
        whom, starts_at = oldest.live.id, oldest.starts_at
        gangs = _counted(len(before), "gang")
        text = f"Cells are kept for {gangs} before it ({whom}, from {starts_at:.15g} on)."
        return Reason(RESERVATION, text, _wanted(live) | {"for": whom, "startsAt": starts_at})

    def _others(self, lines: Sequence[Line]) -> Iterator[tuple[Line, Reason]]:
        cluster, others = self.cluster, list[tuple[Line, Live]]()
        for line in lines:
            live = cluster.gangs[line.waiting[0][1]]
            short = None if may_be_guest(live) else shortage(cluster, live)
            if live.lender is not None:
                text = f"{_wish(live)}: {live.lender}, in whose quota it is, lends it no more now."
                yield line, Reason(QUOTA, text, _wanted(live) | {"lender": live.lender})
            elif short is not None:
                yield line, _quota(live, short)
            else:
                others.append((line, live))
        healthy = self._fitting_if_healthy([live for _, live in others])
        for line, live in others:
            yield line, self._health(live) if live.id in healthy else self._rest(live)

    def _health(self, live: Live) -> Reason:
        count = len(self.bad)
        names = ", ".join(machine.name for machine in self.bad[:NODES_NAMED])
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        text = f"It would be placed if all were well: {nodes} not ({names})."
        return Reason(HEALTH, text, _wanted(live) | {"badNodes": count})

    def _rest(self, live: Live) -> Reason:
        short = shortage(self.cluster, live) if may_be_guest(live) and not live.is_guest else None
        if short is not None:
            return _quota(live, short)
        if self._would_lie_as_wanted(live):
            return Reason(RESOURCE, f"{_wish(live)}: {_too_little_beside(live)}", _wanted(live))
        return Reason(SHAPE, f"{_wish(live)}: {_nowhere(live)}", _wanted(live))

    def _would_lie_as_wanted(self, live: Live) -> bool:
        """It would be placed if its pods wanted GPUs alone: found once for all such."""
        owner, priority, _, near, _, *others = self.cluster.queue.gangs[live.id].key
        roles = live.waiting
        bare = tuple([replace(role, kind=role.kind.gpus_alone()) for role in roles])
        key = owner, priority, tuple([(r.kind, len(r.pods)) for r in bare]), near, *others
        if key not in self._lying:
            live.waiting = bare
            self._lying[key] = could_be_placed(self.cluster, live, is_bare=True)
            live.waiting = roles
        return self._lying[key]

    def _fitting_if_healthy(self, lives: Sequence[Live]) -> Collection[str]:
        """Those of the gangs that would be placed if all were well."""
        if not self.bad:
            return ()
        found, others = set[str](), list[Live]()
        for live in lives:
            if not live.is_guest or len(live.waiting) > 1 or len(live.waiting[0].pods) > 1:
                others.append(live)
            elif any(self._takes(machine, live) for machine in self.bad):
                found.add(live.id)
        if not others:
            return found
        with all_well(self.cluster.hardware, self.bad):
            found |= {live.id for live in others if could_be_placed(self.cluster, live)}
        return found

    def _takes(self, machine: Machine, live: Live) -> bool:
        """A guest's only pod would fit there if all were well."""
        kind, only = live.waiting[0].kind, live.gang.allowed_nodes
        take = machine.sort.take(kind)
        types = kind.gpu_types or self.cluster.hardware.gpu_types
        return (
            take is not None
            and kind.pin is None
            and machine.has(take)
            and machine.has_ports(kind.ports)
            and (only is None or machine.name in only)
            and (
                kind.gpus == 0
                or any(
                    (s.slot.shape.full & ~self.cluster.hardware.used(s)).bit_count() >= kind.gpus
                    for s in machine.slots
                    if s.gpu_type in types
                )
            )
        )


REFUSAL_STEPS = 20_000
"""Steps of the search for a place in the healthy, empty cluster: that a gang is refused is asked
once for its shape, and must be certain.
"""

REFUSAL_LOOKS = 64_000
"""Nodes that are looked at in all these steps, of some 8 us each, at the most."""

NODES_NAMED = 5

LIFTED = 64
"""Where so many gangs are protected at the most it is asked whether it would be placed if they were
not; of more it is told in any case.
"""


def current(cluster: Cluster, line: Line) -> Reason | None:
    """The line's reason with the numbers of now, where they cost nothing to know."""
    live = cluster.gangs[line.waiting[0][1]]
    if line.reason is not None and line.reason.code == QUOTA:
        with cluster.reservations.uncounted(live.owner):
            short = shortage(cluster, live) if live.lender is None else None
        return line.reason if short is None else _quota(live, short)
    return line.reason


def _quota(live: Live, short: Shortage) -> Reason:
    numbers = _wanted(live) | {"cellsWanted": short.wanted, "cellsLeft": short.left}
    which = ""
    if short.pin is not None:
        which, numbers["pin"] = f" in the pin {short.pin}", short.pin
    elif short.types:
        which, numbers["gpuType"] = f" of type {' or '.join(short.types)}", ", ".join(short.types)
    share = ""
    if short.wanted > short.gpus:
        whose = "its" if numbers["pods"] == 1 else "their"
        share = f" for {whose} share of CPU, memory and the like"
    text = (
        f"{_wish(live)}: {live.gang.virtual_cluster} has {_counted(short.left, 'GPU cell')}{which}"
        f" beside those of gangs of priority {live.gang.priority} or higher, {short.wanted}"
        f" {'is' if short.wanted == 1 else 'are'} needed"
        f"{share}."
    )
    return Reason(QUOTA, text, numbers)


def with_lenders(live: Live, reason: Reason) -> Reason:
    """The same of a gang to which nobody lends, as it was tried."""
    if not live.gang.is_borrowing or live.lender is not None or not may_borrow(live):
        return reason
    return replace(reason, text=f"{reason.text} No other virtual cluster lends it room now.")


def with_protected(cluster: Cluster, live: Live, reason: Reason) -> Reason:
    """The same, and who is protected from the gang where it waits for nothing else."""
    is_free = live.is_guest or live.lender is not None
    protected = {} if is_free else cluster.preemptions.held_by(live)
    if not protected:
        return reason
    if len(protected) <= LIFTED:
        with cluster.preemptions.lifted(live.owner):
            if not could_be_placed(cluster, live):
                return reason
    until = min(protected.values())
    gangs, are = _counted(len(protected), "gang"), "is" if len(protected) == 1 else "are"
    numbers = {"protected": len(protected), "protectedUntil": until if until < inf else None}
    text = f"{reason.text} {gangs} of lower priority {are} protected from it"
    text += "." if until == inf else f", until {until:.15g} at the least."
    return Reason(reason.code, text, {**reason.numbers, **numbers})


def unsettled(refusal: Reason) -> Reason:
    """It would be refused, were all that there is known."""
    text = f"Not all nodes may be known yet. {refusal.text}"
    return Reason(HEALTH, text, refusal.numbers)


def preempting(cluster: Cluster, live: Live) -> Reason:
    """Its preemption is published; it waits for the others to leave."""
    others = _awaited(cluster, live)
    whole = [each for each in others if each.extra_of is None]
    parts = [each for each in others if each.extra_of is not None]
    until = max((each.preempted_until or 0.0 for each in others), default=None)
    text = "It starts when what is reserved for it is free."
    if until is not None:
        have = "has" if len(others) == 1 else "have"
        text = (
            f"It starts when {_leaving(whole, parts)} {have} left, by {until:.15g} at the latest."
        )
    numbers = _wanted(live) | {"victims": len(whole), "until": until}
    return Reason(PREEMPTING, text, numbers | ({"surplusPods": len(parts)} if parts else {}))


def _leaving(whole: Sequence[Live], parts: Sequence[Live]) -> str:
    """Gangs, and pods that others can do without."""
    found = [_counted(len(whole), "gang")] if whole else []
    if parts:
        elastic = len({each.extra_of for each in parts})
        found.append(f"{_counted(len(parts), 'pod')} of {_counted(elastic, 'elastic gang')}")
    return " and ".join(found)


def _awaited(cluster: Cluster, live: Live) -> list[Live]:
    """Gangs that have to leave before it starts: for it, or for others from what it has reserved.
    Not those that stand for pods that ended.
    """
    gangs = cluster.gangs
    found = {g: gangs[g] for g in cluster.told_to_leave if gangs[g].preempted_for == live.id}
    for pod in (live.pods[name] for name in live.reserved):
        for gang in pod.machine.pods:
            other = gangs[gang]
            is_somebody = other.gang.virtual_cluster != NO_ONE
            if other.is_leaving and is_somebody and _is_in_the_way(other, pod):
                found[gang] = other
    return [other for other in found.values() if other.extra_of not in found]


def _is_in_the_way(other: Live, pod: Pod) -> bool:
    """The gang uses GPUs that are reserved for the pod, or the node is short of something else."""
    mine = [each for each in other.pods.values() if each.machine is pod.machine]
    return min(pod.machine.free, default=0) < 0 or any(
        each.state is pod.state and each.gpus & pod.gpus for each in mine
    )


def _wanted(live: Live) -> dict[str, int | float | str | None]:
    roles = live.waiting
    return {
        "pods": sum(len(role.pods) for role in roles),
        "gpus": sum(role.kind.gpus * len(role.pods) for role in roles),
        "cpu": sum(role.kind.cpu * len(role.pods) for role in roles),
        "memoryMB": sum(role.kind.memory_mb * len(role.pods) for role in roles),
    }


def _too_little_beside(live: Live) -> str:
    if not _wanted(live)["gpus"]:
        return "the nodes have not enough CPU, memory, ports or other resources left."
    return (
        "there are such GPUs, but not with enough CPU, memory, ports or other resources beside"
        " them."
    )


def _nowhere(live: Live) -> str:
    if not _wanted(live)["gpus"]:
        return "no node takes them."
    return "what is free does not lie together as wanted, or is too little."


def _wish(live: Live) -> str:
    numbers: Numbers = _wanted(live)
    pods, gpus = numbers["pods"], numbers["gpus"]
    what = f"with {_counted(gpus, 'GPU')}" if gpus else "without GPUs"
    return f"{_counted(pods, 'pod')} {what}"


def _counted(number: object, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
