"""Virtual clusters with their quota and use; and the whole cluster in the simulator's form."""

from collections.abc import Iterator

from scheduler.api.answers import Answer
from scheduler.domain.core.cluster import Cluster
from scheduler.domain.core.model import NO_ONE
from scheduler.domain.core.owning import owner_of, pin_owner
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.domain.formats.snapshot import Taken, timed
from scheduler.domain.state import State


def virtual_clusters(state: State) -> Answer:
    """Cells by quota and how many of them are bound; GPUs owned, used and left."""
    cluster = state.cluster
    forest = cluster.hardware.forest
    downgraded: dict[str, int] = {}
    for gang in cluster.charges.guests:
        live = cluster.gangs[gang]
        name = live.gang.virtual_cluster
        downgraded[name] = downgraded.get(name, 0) + live.gpus_in_use
    return {
        "asOf": state.cluster.cycle,
        "gpuTypes": forest.gpu_types,
        "virtualClusters": {
            name: _virtual_cluster(cluster, name, downgraded.get(name, 0))
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
        types |= hardware.index.regions.get(pin_owner(pin), {}).keys()
    owned = sum(hardware.owning.owned.get(key, 0) for key in keys)
    owned += sum(hardware.owning.pin_leaves[pin] for pin in pins)
    charged = sum(sum(cluster.charges.leaves.get(key, {}).values()) for key in keys)
    borrowing = cluster.charges.loans
    lent = borrowing.lent_by(name)
    return {
        "cells": [
            {"quota": q.path, "count": q.count, "bound": q.count - unbound.get(q.path, 0)}
            for q in quotas
        ],
        "pins": pins,
        "gpus": {
            "quota": owned,
            "guaranteed": charged - lent,
            "opportunistic": opportunistic,
            "free": owned - charged,
            "lent": lent,
            "borrowed": borrowing.borrowed_by(name),
        },
        "gpuTypes": sorted(types),
    }


def export(state: State, taken: Taken, at: float) -> Answer:
    """The cluster's file and the events from which the simulator continues, one by one. The
    snapshot is of ``at`` seconds. Resources of ended pods still count as free.
    """
    config = cluster_data(state.cluster.hardware.forest.config)
    return {"asOf": state.cluster.cycle, "cluster": config, "events": _events(taken, at)}


def _events(taken: Taken, at: float) -> Iterator[Answer]:
    for event in timed(taken, at):
        gang = event.get("gang")
        if not (isinstance(gang, dict) and gang["virtualCluster"] == NO_ONE):
            yield event
