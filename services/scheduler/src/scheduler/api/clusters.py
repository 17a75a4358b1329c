"""Virtual clusters with their quota and use; and the whole cluster in the simulator's form."""

from collections.abc import Iterator

from scheduler.api.answers import Answer
from scheduler.domain.core.forest import Forest
from scheduler.domain.core.interface import QuotaState
from scheduler.domain.core.model import NO_ONE
from scheduler.domain.formats.cluster_file import cluster_data
from scheduler.domain.formats.snapshot import Taken, timed
from scheduler.domain.state import State


def virtual_clusters(state: State) -> Answer:
    """Cells by quota and how many of them are bound; GPUs owned, used and left."""
    forest = state.core.forest
    usable = state.core.cells.usable()
    return {
        "asOf": state.core.cycles,
        "gpuTypes": forest.gpu_types,
        "virtualClusters": {
            name: _virtual_cluster(forest, name, quota, usable[name])
            for name, quota in sorted(state.core.cells.quotas().items())
        },
    }


def _virtual_cluster(forest: Forest, name: str, found: QuotaState, usable: int) -> Answer:
    quotas = forest.quotas[name]
    pins = sorted(pin for pin, vc in forest.pin_owners.items() if vc == name)
    types = {quota.chain.gpu_type for quota in quotas} | {forest.pin_type(pin) for pin in pins}
    return {
        "cells": [
            {"quota": q.path, "count": q.count, "bound": found.bound[q.path]} for q in quotas
        ],
        "pins": pins,
        "gpus": {
            "quota": found.owned,
            "guaranteed": found.charged - found.lent,
            "opportunistic": found.opportunistic,
            "free": found.owned - found.charged,
            "usable": usable,
            "lent": found.lent,
            "borrowed": found.borrowed,
        },
        "gpuTypes": sorted(types),
    }


def export(state: State, taken: Taken, at: float) -> Answer:
    """The cluster's file and the events from which the simulator continues, one by one. The
    snapshot is of ``at`` seconds. Resources of ended pods still count as free.
    """
    config = cluster_data(state.core.forest.config)
    return {"asOf": state.core.cycles, "cluster": config, "events": _events(taken, at)}


def _events(taken: Taken, at: float) -> Iterator[Answer]:
    for event in timed(taken, at):
        gang = event.get("gang")
        if not (isinstance(gang, dict) and gang["virtualCluster"] == NO_ONE):
            yield event
