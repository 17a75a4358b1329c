"""What one cycle decided, sorted by gang."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Grown,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Refused,
    Upgraded,
)

from oracle.state import State


@dataclass
class Told:
    """What one cycle decided, by gang. ``raised``: growths of gangs that had their cells again by
    then.
    """

    placed: dict[str, tuple[PodPlace, ...]] = field(default_factory=dict)
    deferred: dict[str, Deferred] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    upgraded: list[str] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    victims: dict[str | None, list[Preempted]] = field(default_factory=lambda: defaultdict(list))
    downgraded: dict[str | None, list[str]] = field(default_factory=lambda: defaultdict(list))


def sort_out(decisions: Sequence[Decision], growing: Collection[str]) -> Told:
    """Decisions by what they are; the pods by which a gang grows are told of like a gang."""
    told = Told()

    def wanting(name: str) -> str:
        return growth_of(name) if name in growing else name

    for decision in decisions:
        match decision:
            case Placed():
                told.placed[decision.gang] = decision.pods
            case Grown():
                told.placed[growth_of(decision.gang)] = decision.pods
            case Deferred():
                told.deferred[wanting(decision.gang)] = decision
            case Refused():
                told.refused[wanting(decision.gang)] = decision
            case Preempted():
                for_gang = decision.for_gang
                told.victims[for_gang and wanting(for_gang)].append(decision)
            case PreemptionCancelled():
                told.cancelled.append(wanting(decision.gang))
            case Downgraded():
                for_gang = decision.for_gang
                told.downgraded[for_gang and wanting(for_gang)].append(decision.gang)
            case Upgraded():
                told.upgraded.append(decision.gang)
                if growth_of(decision.gang) not in told.placed:
                    told.raised.add(growth_of(decision.gang))
    return told


def left_over(told: Told) -> Iterator[str]:
    """What was decided about gangs that did not wait."""
    for name in [*told.placed, *told.refused]:
        yield f"{name} was decided on and did not wait"
    for name in told.cancelled:
        yield f"{name}'s reservation was cancelled for nothing"
    for for_gang, victims in told.victims.items():
        yield f"preempted for {for_gang}, which did not wait: {victims}"
    for for_gang, names in told.downgraded.items():
        yield f"downgraded for {for_gang}, which did not wait: {names}"


def growth_of(gang: str) -> str:
    """What the pods by which a gang grows are called here, until they run."""
    return f"{gang}+"


def lose_later(told: Told, state: State) -> set[str]:
    """Whose cells the core does not tell any more: they leave, or lose them, in this cycle."""
    lost = {name for names in told.downgraded.values() for name in names}
    lost |= {decision.gang for some in told.victims.values() for decision in some}
    return lost | {
        *told.cancelled,
        *(name.rstrip("+") for name in state.records if name.endswith("+")),
    }
