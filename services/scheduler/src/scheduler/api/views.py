"""The content of HTTP answers, made from the present state.

Long answers are made in steps. Between steps node reports arrive and cycles begin. An answer leaves
out a gang that is placed or ends meanwhile.
"""

import asyncio
from bisect import bisect_right

from muster.contracts.model import Model

from scheduler.api import why
from scheduler.api.answers import Alone, Answer
from scheduler.domain.core.extras import lives_of
from scheduler.domain.core.forecast import AHEAD_NAMED, gpus_wanted
from scheduler.domain.core.holdings import Live
from scheduler.domain.core.machines import Machine
from scheduler.domain.core.model import CellUse
from scheduler.domain.messages import message_of
from scheduler.domain.moments import time_of
from scheduler.domain.nodes import Node
from scheduler.domain.requests import Asked
from scheduler.domain.state import State

WHAT_IFS = 3
"""Waiting gangs of a job that get a counterfactual: each may take 50 ms."""

STEP = 100
"""Gangs, nodes or events that are shown at once: some 5 ms."""


async def queue(alone: Alone, limit: int) -> Answer:
    """The waiting gangs, oldest first, at most ``limit``. Gangs that are withheld from the core
    come last, and have no position.
    """
    async with alone() as state:
        as_of, everyone = state.cluster.cycle, state.cluster.forecast.everyone(state.cluster)
        withheld, gangs = sorted(state.withheld), list[Answer]()
        waiting = everyone.count + len(withheld)
        names = [*everyone.first(limit), *withheld][:limit]
        wants = {name: _wants(state, name) for name in names}  # all as it is now
    for start in range(0, len(names), STEP):
        async with alone() as state:
            for place, name in enumerate(names[start : start + STEP], start + 1):
                found = state.gangs.get(name)
                if found is not None and state.is_waiting(name):
                    position = None if name in state.withheld else place
                    gangs.append({"position": position} | _gang(state, found) | wants[name])
        await asyncio.sleep(0)
    return {"asOf": as_of, "waiting": waiting, "limit": limit, "gangs": gangs}


async def gangs(alone: Alone, limit: int, after: str) -> Answer:
    """The gangs that run, by id from the one after ``after`` on, at most ``limit``."""
    async with alone() as state:
        as_of = state.cluster.cycle
        running = sorted(name for name in state.gangs if _is_running(state, name))
    first = bisect_right(running, after)
    named = running[first : first + limit]
    shown: list[Answer] = []
    for start in range(0, len(named), STEP):
        async with alone() as state:
            for name in named[start : start + STEP]:
                found = state.gangs.get(name)
                if found is not None and _is_running(state, name):
                    live = state.cluster.gangs[name]
                    shown.append(_gang(state, found) | _run(state, found, live))
        await asyncio.sleep(0)
    is_cut = len(running) > first + limit
    return {
        "asOf": as_of,
        "running": len(running),
        "limit": limit,
        "next": named[-1] if is_cut else None,
        "gangs": shown,
    }


def gang(state: State, name: str, epoch: int) -> Answer | None:
    """One gang: its pods; if it waits its reason, position and the gangs ahead."""
    found = state.gangs.get(name)
    if found is None:
        return None
    why = _why(state, found, epoch)
    return {"asOf": state.cluster.cycle} | why | _otherwise(state, name)


def job(state: State, job_id: str, epoch: int) -> Answer | None:
    """The same for every gang of a job."""
    gangs = state.jobs.gangs_of(job_id)
    if not gangs:
        return None
    answers = [_why(state, gang, epoch) for gang in gangs]
    for each in [each for each in answers if "position" in each][:WHAT_IFS]:
        each |= _otherwise(state, each["gang"])
    return {"asOf": state.cluster.cycle, "job": job_id, "gangs": answers}


async def nodes(state: State) -> Answer:
    """The nodes and what is free on them."""
    as_of, found = state.cluster.cycle, state.ledger.nodes
    shown: list[Answer] = []
    for number, name in enumerate(sorted(found), 1):
        if number % STEP == 0:
            await asyncio.sleep(0)
        if name in found:
            shown.append(_node(state, found[name]))
    return {"asOf": as_of, "nodes": shown}


def _wants(state: State, gang: str) -> Answer:
    """GPUs of a gang that waits, and when it is expected to start."""
    if gang in state.withheld:
        asks = state.gangs[gang].asks.values()
        gpus = sum(ask.gpus for ask in asks if state.ledger.hold_of(ask.pod) is None)
        return {"gpus": gpus, "expectedStart": None}
    live = state.cluster.gangs[gang]
    expected = state.cluster.forecast.expected(state.cluster, live)
    at = None if expected is None else time_of(expected.at)
    return {"gpus": gpus_wanted(live), "expectedStart": at}


def _otherwise(state: State, gang: str) -> Answer:
    live = state.cluster.gangs.get(gang)
    found = None if live is None else why.counterfactual(state, live)
    return {} if found is None else {"counterfactual": found}


def _gang(state: State, gang: Asked) -> Answer:
    request = gang.request
    reason = (
        state.reason_of(gang.name) if state.is_waiting(gang.name) else None
    ) or gang.published_reason
    return {
        "gang": gang.name,
        "job": request.job,
        "name": request.name,
        "user": request.user,
        "virtualCluster": request.virtual_cluster,
        "priority": request.priority,
        "submittedAt": request.submitted_at.isoformat(),
        "reason": None if reason is None else reason.model_dump(mode="json"),
    }


def _why(state: State, gang: Asked, epoch: int) -> Answer:
    message = _dump(message_of(state, gang, epoch))
    live = state.cluster.gangs.get(gang.name)
    answer = _gang(state, gang) | {
        "state": _state(state, gang),
        "pods": message["pods"],
        "class": message.get("gangClass"),
        "lender": message.get("lender"),
        "borrowed": {} if live is None else _borrowed(state, live),
        "cells": []
        if live is None
        else [_cell(use.cell, use.quota) for use in _cells(state, live)],
        "downgrade": _downgrade(state, gang),
        "preemption": message.get("preemption"),
    }
    if live is None or gang.name in state.withheld or not state.is_waiting(gang.name):
        return answer
    everyone = state.cluster.forecast.everyone(state.cluster)
    before, first = everyone.before(state.cluster.rank_of(live), AHEAD_NAMED)
    return answer | {
        "position": before + 1,
        "waiting": everyone.count,
        "ahead": first,
        "inVirtualCluster": why.place(state, live),
        "expectedStart": why.expected_start(state, live),
    }


def _is_running(state: State, gang: str) -> bool:
    live = state.cluster.gangs.get(gang)
    return live is not None and live.started_at is not None


def _run(state: State, gang: Asked, live: Live) -> Answer:
    """How a gang runs."""
    return {
        "state": _state(state, gang),
        "class": None if live.gang_class is None else live.gang_class.value,
        "lender": live.lender,
        "borrowed": _borrowed(state, live),
        "downgrade": _downgrade(state, gang),
        "startedAt": None if live.started_at is None else time_of(live.started_at),
        "pods": len(gang.asks),
        "gpus": live.gpus_in_use
        + sum(extra.gpus_in_use for extra in lives_of(state.cluster, live.id)),
    }


def _borrowed(state: State, live: Live) -> Answer:
    """GPUs of a gang in borrowed quota, by lender, its elastic pods included."""
    found: dict[str, int] = {}
    for each in (live, *lives_of(state.cluster, live.id)):
        if each.lender is not None and each.gpus_in_use:
            found[each.lender] = found.get(each.lender, 0) + each.gpus_in_use
    return dict(sorted(found.items()))


def _cells(state: State, live: Live) -> list[CellUse]:
    """The cells of a gang, those of its elastic pods included."""
    lives = (live, *lives_of(state.cluster, live.id))
    found = {use for each in lives for use in each.cells()}
    return sorted(found, key=lambda use: (use.cell, use.quota))


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


def _cell(cell: str, quota: str) -> Answer:
    return {"cell": cell, "quota": quota}


def _node(state: State, node: Node) -> Answer:
    size, machine = node.size, state.cluster.hardware.machines.get(node.name)
    order = state.orders.get(node.name)
    slots = () if machine is None else machine.slots
    free = [slot.usable & ~state.cluster.hardware.used(slot) for slot in slots]
    well = [] if node.report is None else [gpu for gpu in node.report.gpus if gpu.is_healthy]
    trouble = node.trouble
    if trouble is None and machine is None:
        trouble = "it is not in the cluster's file"
    return {
        "node": node.name,
        "state": state_of(node),
        "trouble": trouble,
        "order": None if order is None else order.value,
        "lease": node.lease,
        "journal": None if node.report is None else node.report.journal,
        "reportRevision": None if node.report is None else node.report.revision,
        "simulated": node.report is not None and node.report.simulated,
        "gpus": 0 if size is None else len(size.gpus),
        "gpusHealthy": len(well),
        "gpusFree": sum(mask.bit_count() for mask in free),
        "cpu": 0 if size is None else size.cpu,
        "cpuFree": _left(machine, "cpu"),
        "memoryMB": 0 if size is None else size.memory_mb,
        "memoryMBFree": _left(machine, "memoryMB"),
        "pods": sorted(node.holds),
        "unknownPods": sorted(node.orphaned),
    }


def _left(machine: Machine | None, name: str) -> int | None:
    """What is left of a resource; None where the node is not limited in it, or not in use."""
    if machine is None or name not in machine.sort.names:
        return None
    return machine.free[machine.sort.names.index(name)]


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
