"""Decisions of the core, one JSON object a line."""

from collections.abc import Iterable
from typing import assert_never

from scheduler.domain.core.model import (
    Decision,
    Deferred,
    Downgraded,
    Grown,
    NodeGpus,
    Placed,
    PodPlace,
    Preempted,
    PreemptionCancelled,
    Reason,
    Refused,
    Reserved,
    Shrunk,
    Upgraded,
)
from scheduler.domain.formats.writing import to_line, whole

MILLISECONDS = 3
"""Decimals of times, and of other numbers of reasons."""


def decision_line(at: float, decision: Decision) -> str:
    """A decision of the cycle at ``at`` seconds, without the line's end."""
    return to_line({"at": _time(at)} | decision_fields(decision))


def decision_fields(decision: Decision) -> dict[str, object]:
    """A decision as plain data."""
    match decision:
        case Placed(gang, pods, lender):
            return _decision("placed", gang, pods=_pods(pods), **_from(lender))
        case Grown(gang, pods, lender):
            return _decision("grown", gang, pods=_pods(pods), **_from(lender))
        case Deferred(gang, reason):
            return _decision("deferred", gang, reason=reason_fields(reason))
        case Refused(gang, reason):
            return _decision("refused", gang, reason=reason_fields(reason))
        case Preempted(gang, for_gang, until, reason):
            why = reason_fields(reason)
            more: dict[str, object] = {
                "pods": None,
                "for": for_gang,
                "until": _time(until),
                "reason": why,
            }
            return _decision("preempted", gang, **more)
        case Shrunk(gang, pods, for_gang, until, reason):
            why = reason_fields(reason)
            more = {"pods": list(pods), "for": for_gang, "until": _time(until), "reason": why}
            return _decision("shrunk", gang, **more)
        case PreemptionCancelled(gang):
            return _decision("preemption-cancelled", gang)
        case Downgraded(gang, for_gang):
            return _decision("downgraded", gang, **{"for": for_gang})
        case Upgraded(gang):
            return _decision("upgraded", gang)
        case Reserved(gang, cells, starts_at):
            at = None if starts_at is None else _time(starts_at)
            return _decision("reserved", gang, cells=cell_fields(cells), startsAt=at)
        case _:
            assert_never(decision)


def reason_fields(reason: Reason) -> dict[str, object]:
    """A reason as plain data: code, text, then its numbers."""
    numbers: dict[str, object] = {
        name: _time(value) if isinstance(value, float) else value
        for name, value in reason.numbers.items()
    }
    return {"code": reason.code, "text": reason.text} | numbers


def place_fields(place: PodPlace) -> dict[str, object]:
    """A pod with where it is."""
    return {
        "pod": place.pod,
        "node": place.node,
        "gpus": list(place.gpus),
        "ports": list(place.ports),
    }


def cell_fields(cells: Iterable[NodeGpus]) -> list[dict[str, object]]:
    """Reserved cells of a gang, as plain data."""
    return [{"node": node, "gpus": list(gpus)} for node, gpus in cells]


def _time(seconds: float) -> int | float:
    return whole(round(seconds, MILLISECONDS))


def _decision(decision: str, gang: str, **more: object) -> dict[str, object]:
    return {"decision": decision, "gang": gang, **more}


def _from(lender: str | None) -> dict[str, object]:
    return {} if lender is None else {"lender": lender}


def _pods(places: Iterable[PodPlace]) -> list[dict[str, object]]:
    return [place_fields(place) for place in places]
