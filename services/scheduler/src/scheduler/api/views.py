"""The content of HTTP answers, made from the present state.

Long answers are made in steps. Between steps node reports arrive and cycles begin. An answer leaves
out a gang that is placed or ends meanwhile.
"""

import asyncio
from collections.abc import Callable

from muster.contracts.model import Model, Reason

from scheduler.api import why
from scheduler.api.answers import Alone, Answer
from scheduler.domain.core.interface import GangState
from scheduler.domain.core.model import Restored
from scheduler.domain.messages import message_of
from scheduler.domain.moments import time_of, written
from scheduler.domain.nodes import Node
from scheduler.domain.requests import Asked
from scheduler.domain.state import State

WHAT_IFS = 3
"""Waiting gangs of a job that get a counterfactual: each may take 50 ms."""

NOT_IN_FILE = "it is not in the cluster file; add it there"

STEP = 100
"""Gangs, nodes or events that are shown at once: some 5 ms."""


async def queue(alone: Alone, offset: int, limit: int) -> Answer:
    """The waiting gangs in order: at most ``limit`` after the first ``offset``. Gangs that are
    withheld from the core come last, and have no position.
    """
    async with alone() as state:
        as_of, withheld, gangs = state.core.cycles, sorted(state.withheld), list[Answer]()
        total, end = state.core.questions.counts().waiting + len(withheld), offset + limit
        names = [*state.core.questions.first(end), *withheld][offset:end]
        wants = {name: _wants(state, name) for name in names}  # all as it is now
    for start in range(0, len(names), STEP):
        async with alone() as state:
            for place, name in enumerate(names[start : start + STEP], offset + start + 1):
                found = state.gangs.get(name)
                if found is not None and state.is_waiting(name):
                    position = None if name in state.withheld else place
                    gangs.append({"position": position} | _gang(state, found) | wants[name])
        await asyncio.sleep(0)
    return {"asOf": as_of, "total": total, "offset": offset, "limit": limit, "gangs": gangs}


async def gangs(alone: Alone, offset: int, limit: int) -> Answer:
    """The running gangs by id: at most ``limit`` after the first ``offset``."""
    async with alone() as state:
        as_of = state.core.cycles
        running = sorted(name for name in state.gangs if _is_running(state, name))
    named = running[offset : offset + limit]
    shown: list[Answer] = []
    for start in range(0, len(named), STEP):
        async with alone() as state:
            for name in named[start : start + STEP]:
                found = state.gangs.get(name)
                known = state.core.gang(name)
                if found is not None and known is not None and known.started_at is not None:
                    shown.append(_gang(state, found) | _run(state, found, known))
        await asyncio.sleep(0)
    return {
        "asOf": as_of,
        "total": len(running),
        "offset": offset,
        "limit": limit,
        "gangs": shown,
    }


def gang(state: State, name: str, epoch: int) -> Answer | None:
    """One gang: its pods; if it waits its reason, position and the gangs ahead."""
    found = state.gangs.get(name)
    if found is None:
        return None
    why = _why(state, found, epoch)
    return {"asOf": state.core.cycles} | why | _otherwise(state, name)


def job(state: State, job_id: str, epoch: int) -> Answer | None:
    """The same for every gang of a job."""
    gangs = state.jobs.gangs_of(job_id)
    if not gangs:
        return None
    answers = [_why(state, gang, epoch) for gang in gangs]
    for each in [each for each in answers if "position" in each][:WHAT_IFS]:
        each |= _otherwise(state, each["gang"])
    return {"asOf": state.core.cycles, "job": job_id, "gangs": answers}


async def nodes(state: State, first: str, last: str | None, is_troubled: bool) -> Answer:
    """The nodes from ``first`` to ``last`` by name, and what is free on them, with those of the
    cluster file that have not reported. ``is_troubled``: only those on which nothing is placed.
    """
    as_of, found, machines = state.core.cycles, state.ledger.nodes, state.core.forest.machines
    every = found.keys() | machines.keys()
    named = sorted(name for name in every if first <= name and (last is None or name <= last))
    shown: list[Answer] = []
    for number, name in enumerate(named, 1):
        if number % STEP == 0:
            await asyncio.sleep(0)
        node = found.get(name)
        if node is None:
            gpus = sum(slot.shape.full.bit_count() for slot in machines.get(name, ()))
            shown.append(
                dict.fromkeys(("cpu", "memoryMB")) | _ABSENT | {"node": name, "gpus": gpus}
            )
        elif not (is_troubled and _trouble(state, node) is None):
            shown.append(_node(state, node))
    return {"asOf": as_of, "nodes": shown}


def _wants(state: State, gang: str) -> Answer:
    """GPUs of a gang that waits, and when it is expected to start."""
    if gang in state.withheld:
        asks = state.gangs[gang].asks.values()
        gpus = sum(ask.gpus for ask in asks if state.ledger.hold_of(ask.pod) is None)
        return {"gpus": gpus, "expectedStart": None}
    known = state.core.gang(gang)
    return {
        "gpus": 0 if known is None else known.gpus_wanted,
        "expectedStart": why.expected_start(state, gang),
    }


def _otherwise(state: State, gang: str) -> Answer:
    found = why.counterfactual(state, gang)
    return {} if found is None else {"counterfactual": found}


def _gang(state: State, gang: Asked, ask: Callable[[str], Reason | None] | None = None) -> Answer:
    """``ask``: for the reason of its wait."""
    request, ask = gang.request, ask or state.reason_of
    reason = (ask(gang.name) if state.is_waiting(gang.name) else None) or gang.published_reason
    return {
        "gang": gang.name,
        "job": request.job,
        "name": request.name,
        "user": request.user,
        "virtualCluster": request.virtual_cluster,
        "priority": request.priority,
        "submittedAt": written(request.submitted_at),
        "reason": None if reason is None else reason.model_dump(mode="json"),
    }


def _why(state: State, gang: Asked, epoch: int) -> Answer:
    message = _dump(message_of(state, gang, epoch))
    known = state.core.gang(gang.name)
    placed = None if known is None else state.core.exported(gang.name)
    answer = _gang(state, gang, state.reason_now) | {
        "state": _state(state, gang),
        "pods": message["pods"],
        "class": message.get("gangClass"),
        "lender": message.get("lender"),
        "borrowed": {} if placed is None else _borrowed(placed),
        "cells": []
        if placed is None
        else [{"cell": use.cell, "quota": use.quota} for use in placed.cells],
        "downgrade": _downgrade(state, gang),
        "preemption": message.get("preemption"),
    }
    if known is None or gang.name in state.withheld or not known.is_waiting:
        return answer
    before = state.core.questions.before(gang.name)
    return answer | {
        "position": before.number + 1,
        "waiting": state.core.questions.counts().waiting,
        "ahead": list(before.first),
        "inVirtualCluster": why.place(state, gang.name),
        "expectedStart": why.expected_start(state, gang.name),
    }


def _is_running(state: State, gang: str) -> bool:
    known = state.core.gang(gang)
    return known is not None and known.started_at is not None


def _run(state: State, gang: Asked, known: GangState) -> Answer:
    """How a gang runs."""
    placed = state.core.exported(gang.name)
    return {
        "state": _state(state, gang),
        "class": None if known.gang_class is None else known.gang_class.value,
        "lender": known.lender,
        "borrowed": _borrowed(placed),
        "downgrade": _downgrade(state, gang),
        "startedAt": None if known.started_at is None else time_of(known.started_at),
        "pods": len(gang.asks),
        "gpus": sum(len(place.gpus) for place in placed.running),
    }


def _borrowed(placed: Restored) -> Answer:
    """GPUs of a gang in borrowed quota, by lender, its elastic pods included."""
    lenders, found = {each.pod: each.lender for each in placed.extra}, dict[str, int]()
    for place in placed.running:
        lender = lenders.get(place.pod, placed.lender)
        if lender is not None and place.gpus:
            found[lender] = found.get(lender, 0) + len(place.gpus)
    return dict(sorted(found.items()))


def _downgrade(state: State, gang: Asked) -> Answer | None:
    """The gang that took its cells (None: the configuration changed), and when."""
    found = state.downgrade_of(gang.name)
    return None if found is None else {"gang": found.for_gang, "since": time_of(found.at)}


def _state(state: State, gang: Asked) -> str:
    if gang.preemption is not None and not gang.leaving:
        return "preempted"
    if state.is_waiting(gang.name):
        return "waiting"
    return "refused" if gang.is_refused else "placed"


_ABSENT = {"state": "absent", "trouble": "it has not reported yet"}


def _trouble(state: State, node: Node) -> str | None:
    if node.trouble is None and state.core.nodes.of(node.name) is None:
        return NOT_IN_FILE if state.file is not None else "it is not in the cluster yet"
    return node.trouble


def _node(state: State, node: Node) -> Answer:
    size, known = node.size, state.core.nodes.of(node.name)
    order = state.orders.get(node.name)
    well = [] if node.report is None else [gpu for gpu in node.report.gpus if gpu.is_healthy]
    totals = {} if size is None else {"cpu": size.cpu, "memoryMB": size.memory_mb}
    totals |= {} if known is None else known.totals
    return {
        "node": node.name,
        "state": state_of(node),
        "trouble": _trouble(state, node),
        "order": None if order is None else order.value,
        "lease": node.lease,
        "journal": None if node.report is None else node.report.journal,
        "reportRevision": None if node.report is None else node.report.revision,
        "simulated": node.report is not None and node.report.simulated,
        "gpus": 0 if size is None else len(size.gpus),
        "gpusHealthy": len(well),
        "gpusFree": 0 if known is None else known.gpus_free,
        "cpu": totals.get("cpu"),
        "cpuFree": None if known is None else known.left.get("cpu"),
        "memoryMB": totals.get("memoryMB"),
        "memoryMBFree": None if known is None else known.left.get("memoryMB"),
        "pods": sorted(node.holds),
        "unknownPods": sorted(node.orphaned),
    }


def state_of(node: Node) -> str:
    """The name of a node's state, for people and metrics."""
    if node.is_lost:
        return "lost"
    if node.is_eligible:
        return "alive"
    if node.report is not None and node.report.is_stopping:
        return "stopping"
    return "unhealthy" if node.is_alive and node.report is not None else "unknown"


def _dump(model: Model) -> Answer:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
