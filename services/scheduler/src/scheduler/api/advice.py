"""Advice for operators: moves that would free cells. The Scheduler moves nothing by it."""

from scheduler.api.answers import Answer
from scheduler.api.why import named
from scheduler.domain.core.interface import Move
from scheduler.domain.core.model import PodPlace, Reason
from scheduler.domain.state import State


def advice(state: State, chain: str | None, cell: str | None, cells: int) -> Answer | None:
    """As of the last cycle; None: there is no such chain or type of cell."""
    best = state.core.questions.advise(chain, cell, cells)
    if best is None:
        return None
    return {
        "asOf": state.core.cycles,
        "chain": best.chain,
        "cell": best.cell_type,
        "wanted": cells,
        "cells": list(best.cells),
        "freeAlready": best.already,
        "gpus": best.gpus,
        "lostGpuSeconds": round(best.lost_gpu_s, 3),
        "isLeast": best.is_least,
        "isCut": best.is_cut,
        "reason": None if best.reason is None else _reason(best.reason),
        "moves": [_move(state, each) for each in best.moves],
    }


def _reason(reason: Reason) -> Answer:
    return {"code": reason.code, "text": reason.text, "numbers": dict(reason.numbers)}


def _move(state: State, move: Move) -> Answer:
    known = state.core.gang(move.gang)
    assert known is not None
    return named(state, move.gang) | {
        "virtualCluster": known.gang.virtual_cluster,
        "priority": known.gang.priority,
        "class": move.gang_class,
        "gpus": move.gpus,
        "lostGpuSeconds": round(move.lost_gpu_s, 3),
        "isSurplus": move.is_surplus,
        "lender": move.lender,
        "pods": [
            {"pod": pod, "from": _place(place), "to": _place(move.after.get(pod))}
            for pod, place in move.before.items()
        ],
    }


def _place(place: PodPlace | None) -> Answer | None:
    return None if place is None else {"node": place.node, "gpus": list(place.gpus)}
