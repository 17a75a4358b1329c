"""Answers about a waiting gang: the gangs ahead of it, its expected start, and the changes with
which it starts.
"""

from scheduler.api.answers import Answer
from scheduler.domain.core.interface import Ends
from scheduler.domain.moments import time_of
from scheduler.domain.state import State

ENDS_NAMED = 10
"""Gangs to end that an answer names; it counts the rest."""


def place(state: State, gang: str) -> Answer | None:
    """A gang's position in its virtual cluster, among gangs of its class. None: it has a nominated
    placement.
    """
    ahead = state.core.questions.ahead(gang)
    if ahead is None:
        return None
    return {
        "position": ahead.position,
        "waiting": ahead.waiting,
        "gpusAhead": ahead.gpus,
        "ahead": [named(state, each) | {"gpus": gpus} for each, gpus in ahead.first],
    }


def expected_start(state: State, gang: str) -> str | None:
    """When its reserved cells will be free; None: it has no reservation."""
    at = state.core.questions.starts_at(gang)
    return None if at is None else time_of(at)


def counterfactual(state: State, gang: str) -> Answer | None:
    """The changes that would let it start; None: it has a nominated placement, or does not wait."""
    found = state.core.questions.counterfactual(gang)
    if found is None:
        return None
    fewer = found.fewer
    return {
        "ends": None if found.ends is None else _ends(state, found.ends),
        "fewer": None
        if fewer is None
        else {
            "role": fewer.role,
            "pods": fewer.pods,
            "insteadOf": fewer.wanted,
            "isElastic": _is_elastic(state, gang, fewer.wanted),
        },
        "opportunistic": found.is_opportunistic,
        "borrowing": None
        if found.is_borrowing is None
        else {"startsNow": found.is_borrowing, "lender": found.lender},
        "nodes": list(found.nodes),
        "leftOut": found.left_out,
    }


def _is_elastic(state: State, gang: str, wanted: int) -> bool:
    """A role of the gang starts with so many of its pods, which `minInstances` sets."""
    known = state.core.gang(gang)
    return known is not None and any(role.least == wanted for role in known.gang.roles)


def _ends(state: State, found: Ends) -> Answer:
    return {
        "gangs": [
            named(state, each.gang) | {"gpus": each.gpus, "endsAt": time_of(each.at)}
            for each in found.gangs[:ENDS_NAMED]
        ],
        "count": len(found.gangs),
        "gpus": sum(each.gpus for each in found.gangs),
        "at": time_of(found.at),
        "isLeast": found.is_least,
    }


def named(state: State, gang: str) -> Answer:
    """A gang by its id, and by its owner's name for it."""
    asked, known = state.gangs.get(gang), state.core.gang(gang)
    name = gang if asked is None else asked.request.name
    return {"gang": gang, "name": name, "user": None if known is None else known.gang.user}
