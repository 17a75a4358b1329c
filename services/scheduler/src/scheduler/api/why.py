"""What a waiting gang's owner wants to know: who is ahead, when it is expected to start, and what
would have to be otherwise for it to start.
"""

from scheduler.api.answers import Answer
from scheduler.domain.core.answers import Ends, answer
from scheduler.domain.core.ends import ends_at
from scheduler.domain.core.forecast import gpus_wanted
from scheduler.domain.core.holdings import Live
from scheduler.domain.moments import time_of
from scheduler.domain.state import State

ENDS_NAMED = 10
"""Gangs to end that an answer names; it counts the others."""


def place(state: State, live: Live) -> Answer | None:
    """A gang's place in its virtual cluster, among those of its class; None: it has a place
    that others leave, or does not wait.
    """
    ahead = state.cluster.forecast.ahead(state.cluster, live)
    if ahead is None:
        return None
    return {
        "position": ahead.position,
        "waiting": ahead.waiting,
        "gpusAhead": ahead.gpus,
        "ahead": [named(state, each) | {"gpus": gpus_wanted(each)} for each in ahead.first],
    }


def expected_start(state: State, live: Live) -> Answer | None:
    """When it starts, as far as anybody knows, and how far off that was for others."""
    found = state.cluster.forecast.expected(state.cluster, live)
    if found is None:
        return None
    error = None if found.error is None else round(found.error, 2)
    return {"at": time_of(found.at), "source": found.source, "error": error, "known": found.known}


def counterfactual(state: State, live: Live) -> Answer | None:
    """What would have to be otherwise; None: it has a place that others leave."""
    if live.id not in state.cluster.queue.gangs:
        return None
    found = answer(state.cluster, live)
    fewer = found.fewer
    return {
        "ends": None if found.ends is None else _ends(state, found.ends),
        "fewer": None
        if fewer is None
        else {"role": fewer.role, "pods": fewer.pods, "insteadOf": fewer.wanted},
        "opportunistic": found.is_opportunistic,
        "borrowing": None
        if found.is_borrowing is None
        else {"startsNow": found.is_borrowing, "lender": found.lender},
        "nodes": list(found.nodes),
        "leftOut": found.left_out,
    }


def _ends(state: State, found: Ends) -> Answer:
    cluster = state.cluster
    return {
        "gangs": [
            named(state, each)
            | {"gpus": each.gpus, "endsAt": time_of(ends_at(each, cluster.policy, cluster.now))}
            for each in found.gangs[:ENDS_NAMED]
        ],
        "count": len(found.gangs),
        "gpus": sum(each.gpus for each in found.gangs),
        "at": time_of(found.at),
        "isLeast": found.is_least,
    }


def named(state: State, live: Live) -> Answer:
    """A gang by its id, and as its owner calls it."""
    asked = state.gangs.get(live.id)
    name = live.id if asked is None else asked.request.name
    return {"gang": live.id, "name": name, "user": live.gang.user}
