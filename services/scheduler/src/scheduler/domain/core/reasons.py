"""Why a gang waits: a code, numbers, and what would have to happen."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf

from scheduler.domain.core.admitting import could_be_placed, may_be_guest
from scheduler.domain.core.borrowing import may_borrow
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.holdings import Live, Pod
from scheduler.domain.core.interface import HEALTH, PREEMPTING
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import NO_ONE, Reason
from scheduler.domain.core.passing import first_of, out_of_the_way
from scheduler.domain.core.queue import Line, wish_of
from scheduler.domain.core.reservation import goes_before
from scheduler.domain.core.shortages import Shortage, shortage
from scheduler.domain.core.tried import Tried
from scheduler.domain.core.wellness import all_well
from scheduler.domain.core.wording import counted, in_words, wanted

QUOTA, SHAPE, RESOURCE = "quota", "shape", "resource"
RESERVATION, ORDER = "reservation", "order"


class Explainer:
    """Explains lines whose head could not be placed. ``bad``: nodes on which not all is usable.

    What is known of who could be placed: ``_if_alone``, with nothing kept for others; ``_if_well``,
    if all nodes were well; ``_if_bare``, if pods wanted GPUs alone. ``_protected``: how many are
    protected from gangs of an owner and priority, and until when.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        unwell = cluster.hardware.unwell
        self.bad = [unwell[number] for number in sorted(unwell)]
        self._known: dict[object, Reason] = {}
        self._if_alone, self._if_well, self._if_bare = (Tried(cluster) for _ in range(3))
        self._protected: dict[object, tuple[int, float]] = {}

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
                yield line, with_lenders(live, self._with_protected(live, reason))

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
            return Reason(ORDER, text, wanted(live) | {"for": first.id})
        others = cluster.reservations.of(live.owner)
        before = [each for each in others if not goes_before(live, each)]
        if live.is_guest or not before or not self._would_lie_as_wanted(live):
            return None
        if not self._could_be_placed(live, self._if_alone):
            return None
        oldest = before[0]
        whom, starts_at = oldest.live.id, oldest.starts_at
        gangs = counted(len(before), "gang")
        text = f"Cells are kept for {gangs} before it ({whom}, from {starts_at:.15g} on)."
        return Reason(RESERVATION, text, wanted(live) | {"for": whom, "startsAt": starts_at})

    def _others(self, lines: Sequence[Line]) -> Iterator[tuple[Line, Reason]]:
        cluster, others = self.cluster, list[tuple[Line, Live]]()
        for line in lines:
            live = cluster.gangs[line.waiting[0][1]]
            short = None if may_be_guest(live) else shortage(cluster, live)
            if live.lender is not None:
                text = (
                    f"{in_words(live)}: {live.lender}, in whose quota it is, lends it no more now."
                )
                yield line, Reason(QUOTA, text, wanted(live) | {"lender": live.lender})
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
        text = (
            f"It would be placed if all nodes were usable: {nodes} not ({names})."
            " `muster nodes` says why."
        )
        return Reason(HEALTH, text, wanted(live) | {"badNodes": count})

    def _rest(self, live: Live) -> Reason:
        short = shortage(self.cluster, live) if may_be_guest(live) and not live.is_guest else None
        if short is not None:
            return _quota(live, short)
        if self._would_lie_as_wanted(live):
            return Reason(RESOURCE, f"{in_words(live)}: {_too_little_beside(live)}", wanted(live))
        return Reason(SHAPE, f"{in_words(live)}: {_nowhere(live)}", wanted(live))

    def _would_lie_as_wanted(self, live: Live) -> bool:
        """It would be placed if its pods wanted GPUs alone: found once for all such."""
        roles = live.waiting
        live.waiting = tuple([replace(role, kind=role.kind.gpus_alone()) for role in roles])
        try:
            return self._could_be_placed(live, self._if_bare, is_bare=True)
        finally:
            live.waiting = roles

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
            fitting = (e for e in others if self._could_be_placed(e, self._if_well))
            found |= {live.id for live in fitting}
        return found

    def _could_be_placed(self, live: Live, known: Tried, *, is_bare: bool = False) -> bool:
        """As `could_be_placed`, if that is not known from others."""
        if known.fits(live):
            return True
        if known.is_vain(live):
            return False
        found = could_be_placed(self.cluster, live, is_bare=is_bare)
        (known.note_fitting if found else known.note_vain)(live)
        return found

    def _with_protected(self, live: Live, reason: Reason) -> Reason:
        """The same, and who is protected from the gang where it waits for nothing else."""
        if live.is_guest or live.lender is not None:
            return reason
        count, until = self._protected_from(live)
        if not count:
            return reason
        if count <= LIFTED:
            with self.cluster.preemptions.lifted(live.owner):
                if not could_be_placed(self.cluster, live):
                    return reason
        gangs, are = counted(count, "gang"), "is" if count == 1 else "are"
        numbers = {"protected": count, "protectedUntil": until if until < inf else None}
        text = f"{reason.text} {gangs} of lower priority {are} protected from it"
        text += "." if until == inf else f", until {until:.15g} at the least."
        return Reason(reason.code, text, {**reason.numbers, **numbers})

    def _protected_from(self, live: Live) -> tuple[int, float]:
        """How many gangs are, and until when at the least: found once for all of which no job is
        kept off others.
        """
        key = live.id if live.is_paired else (live.owner, live.gang.priority)
        found = self._protected.get(key)
        if found is None:
            protected = self.cluster.preemptions.held_by(live)
            found = len(protected), min(protected.values(), default=inf)
            self._protected[key] = found
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
    numbers = wanted(live) | {"cellsWanted": short.wanted, "cellsLeft": short.left}
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
        f"{in_words(live)}: {live.gang.virtual_cluster} has {counted(short.left, 'GPU cell')}"
        f"{which} beside those of gangs of priority {live.gang.priority} or higher, {short.wanted}"
        f" {'is' if short.wanted == 1 else 'are'} needed"
        f"{share}."
    )
    return Reason(QUOTA, text, numbers)


def with_lenders(live: Live, reason: Reason) -> Reason:
    """The same of a gang to which nobody lends, as it was tried."""
    if not live.gang.is_borrowing or live.lender is not None or not may_borrow(live):
        return reason
    return replace(reason, text=f"{reason.text} No other virtual cluster lends it room now.")


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
    numbers = wanted(live) | {"victims": len(whole), "until": until}
    return Reason(PREEMPTING, text, numbers | ({"surplusPods": len(parts)} if parts else {}))


def _leaving(whole: Sequence[Live], parts: Sequence[Live]) -> str:
    """Gangs, and pods that others can do without."""
    found = [counted(len(whole), "gang")] if whole else []
    if parts:
        elastic = len({each.extra_of for each in parts})
        found.append(f"{counted(len(parts), 'pod')} of {counted(elastic, 'elastic gang')}")
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


def _too_little_beside(live: Live) -> str:
    if not wanted(live)["gpus"]:
        return "the nodes have not enough CPU, memory, ports or other resources left."
    return (
        "there are such GPUs, but not with enough CPU, memory, ports or other resources beside"
        " them."
    )


def _nowhere(live: Live) -> str:
    if not wanted(live)["gpus"]:
        return "no node takes them."
    return "what is free does not lie together as wanted, or is too little."
