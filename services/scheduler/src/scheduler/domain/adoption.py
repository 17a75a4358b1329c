"""Pods that a node reports and a gang wants, though the store has lost their placements. They are
adopted where they run, or their gang waits until they are gone.

No pod of such a gang is placed meanwhile: a running pod's name must not run elsewhere too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.contracts.gangs import PodAsk
from muster.contracts.model import Reason
from muster.contracts.nodes import PodOnNode

from scheduler.domain.core.interface import Core, NodeState
from scheduler.domain.core.model import ExtraPod, Kind, PodPlace, Restored
from scheduler.domain.ledger import Ledger
from scheduler.domain.nodes import Claim, Node
from scheduler.domain.placements import Placement
from scheduler.domain.requests import (
    Asked,
    gang_of,
    kind_of,
    placement_of,
    roles_of,
    saved_at,
    surplus_of,
)

STILL_RUNNING = "still-running"
"""The reason code of such a waiting gang."""


@dataclass(frozen=True, slots=True)
class Listed:
    """By gang: the pods that can be adopted, and for the others the reason; if several, one."""

    adoptable: dict[str, list[Placement]] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)

    def as_reasons(self) -> dict[str, Reason]:
        """The same without adoptions, in a process that does not decide."""
        found = dict(self.reasons)
        for gang, places in self.adoptable.items():
            found.setdefault(
                gang, still_running(places[0].pod, [places[0].node], "it is adopted soon")
            )
        return found


def is_listed(ledger: Ledger, gang: Asked) -> bool:
    """A node reports a pod of the gang that has no placement."""
    return bool(ledger.listed) and any(
        pod in ledger.listed and pod not in ledger.pods for pod in gang.asks
    )


def look(ledger: Ledger, gangs: Mapping[str, Asked], core: Core) -> Listed:
    """What to do with all such pods."""
    found = Listed()
    for pod in sorted(pod for pod in ledger.listed if pod not in ledger.pods):
        gang = _asker(pod, gangs)
        if gang is None:
            continue
        names = sorted(ledger.listed[pod])
        node, state = ledger.nodes[names[0]], core.nodes.of(names[0])
        why = "several nodes report it" if len(names) > 1 else _obstacle(gang, pod, node, state)
        if why is not None:
            found.reasons.setdefault(gang.name, still_running(pod, names, why))
            continue
        assert node.report is not None
        shown = _shown(node, pod)
        assert shown is not None
        place = PodPlace(pod, node.name, shown.gpus, tuple(sorted(shown.ports)))
        found.adoptable.setdefault(gang.name, []).append(placement_of(gang, place, node.report))
    return found


def joined(
    gang: Asked, before: Restored | None, places: Sequence[Placement], at: float
) -> Restored:
    """The gang with its adopted pods, as the core restores it. ``before``: its earlier facts."""
    had = before or Restored(
        gang_of(gang.request, (), gang.expected_s),
        (),
        started_at=at,
        checkpointed_at=saved_at(gang.request, at),
    )
    all_places = (*had.places, *(place.place() for place in places))
    surplus = surplus_of(gang.asks.values())
    known = {each.pod for each in had.extra}
    extra = (*had.extra, *(ExtraPod(p.pod, at) for p in places if p.pod in surplus - known))
    if len(extra) == len(all_places):  # only elastic pods run: they can't run alone
        extra = ()
    kinds: list[tuple[str, Kind]] = [
        (place.pod, kind_of(gang.asks[place.pod])) for place in all_places
    ]
    roles = roles_of(kinds)
    return replace(had, gang=replace(had.gang, roles=roles), places=all_places, extra=extra)


def still_running(pod: str, nodes: Collection[str], why: str) -> Reason:
    """The gang waits until the pod is gone, or adopted."""
    where = ", ".join(nodes)
    text = f"Its pod {pod} still runs on {where}, and can't be adopted there: {why}."
    return Reason(code=STILL_RUNNING, text=text, numbers={"pod": pod, "node": where})


def _asker(pod: str, gangs: Mapping[str, Asked]) -> Asked | None:
    """The gang that waits for the pod: the pod's name begins with its name, or equals it."""
    name = pod
    while name:
        gang = gangs.get(name)
        if gang is not None and pod in gang.asks:
            return None if gang.is_refused else gang
        name = name.rpartition("-")[0]
    return None


def _obstacle(gang: Asked, pod: str, node: Node, state: NodeState | None) -> str | None:
    """Why the pod can't be adopted on the node; None: it can be."""
    if not node.is_known:
        return node.trouble or "the node is in trouble"
    if state is None:
        return "the node is not in the cluster"
    shown, ask = _shown(node, pod), gang.asks[pod]
    if shown is None or not _fits(shown, ask):
        return "it does not hold the GPUs and ports that the gang requests"
    claims = [claim for other, claim in node.orphaned.items() if other != pod]
    for hold in node.holds.values():
        if hold.is_occupying:
            claims.append(Claim(hold.placement.gpus, hold.placement.port_numbers))
    if any(_overlap(shown, claim) for claim in claims):
        return "another pod has its GPUs or ports"
    is_free = state.nominated.isdisjoint(shown.gpus)
    if not (is_free and set(state.used_ports).isdisjoint(shown.ports)):
        return "its GPUs or ports are reserved for another gang"
    return None


def _shown(node: Node, pod: str) -> PodOnNode | None:
    """The pod as the node reports it; None where only a GPU names it."""
    pods = () if node.report is None else node.report.pods
    return next((each for each in pods if each.pod == pod), None)


def _fits(shown: PodOnNode, ask: PodAsk) -> bool:
    ports = sum(count for count in ask.ports.values() if count > 0)
    return (len(set(shown.gpus)), len(set(shown.ports))) == (ask.gpus, ports)


def _overlap(shown: PodOnNode, claim: Claim) -> bool:
    return not (set(shown.gpus).isdisjoint(claim.gpus) and set(shown.ports).isdisjoint(claim.ports))
