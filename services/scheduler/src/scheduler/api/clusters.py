"""Virtual clusters with what they own and use; and all of it in the simulator's form."""

from dataclasses import replace
from typing import Any

from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.hardware import owner_of, pin_owner
from scheduler.domain.core.holdings import Live
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.domain.formats.export import (
    grown_events,
    requested_events,
    restored_event,
)
from scheduler.domain.formats.writing import whole
from scheduler.domain.state import LEFT, State

Answer = dict[str, Any]


def virtual_clusters(state: State) -> Answer:
    """Cells by quota and how many of them are bound; GPUs owned, used and left."""
    cluster = state.cluster
    forest = cluster.hardware.forest
    guests: dict[str, int] = {}
    for gang in cluster.charges.guests:
        live = cluster.gangs[gang]
        name = live.gang.virtual_cluster
        guests[name] = guests.get(name, 0) + live.gpus_in_use
    return {
        "asOf": state.cluster.cycle,
        "gpuTypes": forest.gpu_types,
        "virtualClusters": {
            name: _virtual_cluster(cluster, name, guests.get(name, 0))
            for name in sorted(forest.quotas)
        },
    }


def _virtual_cluster(cluster: Cluster, name: str, opportunistic: int) -> Answer:
    hardware, owner = cluster.hardware, owner_of(name)
    quotas = hardware.forest.quotas[name]
    unbound = hardware.unbound.get(owner, {})
    pins = sorted(pin for pin, vc in hardware.forest.pin_owners.items() if vc == name)
    types = {quota.chain.leaf for quota in quotas}
    keys = [(owner, leaf) for leaf in sorted(types)] + [(pin_owner(pin), "") for pin in pins]
    for pin in pins:
        types |= hardware.regions.get(pin_owner(pin), {}).keys()
    owned = sum(hardware.owned.get(key, 0) for key in keys)
    owned += sum(hardware.pin_leaves[pin] for pin in pins)
    charged = sum(sum(cluster.charges.leaves.get(key, {}).values()) for key in keys)
    return {
        "cells": [
            {"quota": q.path, "count": q.count, "bound": q.count - unbound.get(q.path, 0)}
            for q in quotas
        ],
        "pins": pins,
        "gpus": {
            "quota": owned,
            "guaranteed": charged,
            "opportunistic": opportunistic,
            "free": owned - charged,
        },
        "gpuTypes": sorted(types),
    }


def export(state: State, at: float) -> Answer:
    """The cluster's file and the events after which the simulator goes on from here.

    ``leftOut``: gangs whose pods' names its files can't have.
    """
    events: list[Answer] = _node_events(state, at)
    left_out: list[str] = []
    lives = [live for live in state.cluster.gangs.values() if not live.id.startswith(LEFT)]
    for live in sorted(lives, key=lambda live: (not live.pods, live.id)):
        try:
            events += _gang_events(state, live, at)
        except ValueError:
            left_out.append(live.id)
    config = cluster_data(state.cluster.hardware.forest.config)
    return {"asOf": state.cluster.cycle, "cluster": config, "events": events, "leftOut": left_out}


def _gang_events(state: State, live: Live, at: float) -> list[Answer]:
    waiting = () if live.reserved else live.waiting
    if not live.pods:
        wanted = replace(live.gang, roles=waiting)
        return requested_events(at, wanted) if waiting else []
    restored = state.cluster.exported(live.id)
    placed = {place.pod for place in restored.places}
    roles = (replace(r, pods=tuple(p for p in r.pods if p in placed)) for r in live.gang.roles)
    gang = replace(live.gang, roles=tuple(role for role in roles if role.pods))
    found = [restored_event(at, replace(restored, gang=gang))]
    return found + (grown_events(at, gang, waiting) if waiting else [])


def _node_events(state: State, at: float) -> list[Answer]:
    events: list[Answer] = []
    for name, machine in state.cluster.hardware.machines.items():
        about: Answer = {"at": whole(at), "event": "", "node": name}
        if not machine.is_healthy:
            events.append(about | {"event": "node-bad"})
        for slot in machine.slots:
            for gpu in slot.slot.indices(slot.sick | slot.blocked):
                events.append(about | {"event": "gpu-bad", "gpu": gpu})
        if machine.is_cordoned:
            events.append(about | {"event": "node-cordoned"})
        if machine.is_drained:
            events.append(about | {"event": "node-drained"})
    return events
