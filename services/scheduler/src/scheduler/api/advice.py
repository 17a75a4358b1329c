"""Advice for operators: moves that would free cells. The Scheduler moves nothing by it."""

from scheduler.api.answers import Answer
from scheduler.api.why import named
from scheduler.domain.core.advising import Advice, Move, advise, wishes
from scheduler.domain.core.model import PodPlace
from scheduler.domain.state import State


def advice(state: State, chain: str | None, cell: str | None, cells: int) -> Answer | None:
    """As of the last cycle; None: there is no such chain or type of cell."""
    found = wishes(state.cluster.hardware.forest, chain, cell, cells)
    if not found:
        return None
    best = advise(state.cluster, found)
    gpus, lost_gpu_s = best.price
    return {
        "asOf": state.cluster.cycle,
        "chain": best.wish.chain.name,
        "cell": best.wish.cell_type,
        "wanted": cells,
        "cells": list(best.cells),
        "freeAlready": best.already,
        "gpus": gpus,
        "lostGpuSeconds": round(lost_gpu_s, 3),
        "isLeast": best.is_least,
        "isCut": best.is_cut,
        "reason": _reason(best),
        "moves": [_move(state, each) for each in best.moves],
    }


def _reason(found: Advice) -> Answer | None:
    reason = found.reason
    if reason is None:
        return None
    return {"code": reason.code, "text": reason.text, "numbers": dict(reason.numbers)}


def _move(state: State, move: Move) -> Answer:
    live = move.live
    gang = live.extra_of or live.id
    return named(state, state.cluster.gangs[gang]) | {
        "virtualCluster": live.gang.virtual_cluster,
        "priority": live.gang.priority,
        "class": live.gang_class,
        "gpus": move.gpus,
        "lostGpuSeconds": round(move.lost_gpu_s, 3),
        "isSurplus": move.is_extra,
        "lender": move.lender,
        "pods": [
            {"pod": pod, "from": _place(place), "to": _place(move.after.get(pod))}
            for pod, place in move.before.items()
        ],
    }


def _place(place: PodPlace | None) -> Answer | None:
    return None if place is None else {"node": place.node, "gpus": list(place.gpus)}
