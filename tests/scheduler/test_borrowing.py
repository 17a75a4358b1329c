"""Gangs on loan as the service has them: stored, told, shown, and given back."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from muster.contracts.gangs import GangRequest
from muster.service import Runtime
from prometheus_client import CollectorRegistry
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.messages import message_of
from scheduler.domain.state import State
from scheduler.metrics import SchedulerMetrics
from scheduler_answers import served

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

CLUSTER = {
    "cellTypes": {"node": {"child": "t", "count": 4, "node": True}},
    "physicalCells": [{"type": "node", "name": name} for name in ("n0", "n1")],
    "nodes": {},
    "virtualClusters": {
        "default": {"cells": [{"type": "node", "count": 1}]},
        "lab": {"cells": [{"type": "node", "count": 1}]},
    },
    "policy": {"backfill": False},  # where cells are kept for it nobody is asked who would lend
}


def file() -> ClusterConfig:
    return read_cluster(json.dumps(CLUSTER).encode()).config


def asked(kit: Kit, name: str, *, vc: str = "default", borrow: bool = False) -> GangRequest:
    """A gang that wants a whole node."""
    message: GangRequest = kit.gang(name, *kit.pods(name, 1, gpus=4))
    return message.model_copy(update={"virtual_cluster": vc, "borrow": borrow})


def lent(kit: Kit) -> State:
    """Of two gangs of the same virtual cluster the second has borrowed its node."""
    state: State = kit.state(kit.report("n0", gpus=4), kit.report("n1", gpus=4), file=file())
    for now, name in enumerate(("a", "b")):
        state.request(asked(kit, name, borrow=True), float(now), float(now))
        kit.decide(state, float(now))
    return state


def test_the_word_says_who_lends(kit: Kit) -> None:
    state = lent(kit)
    assert [message_of(state, state.gangs[name], 1).lender for name in "ab"] == [None, "lab"]
    assert state.known("b").lender == "lab"


def test_what_is_lent_is_asked_back(kit: Kit) -> None:
    state = lent(kit)
    state.request(asked(kit, "own", vc="lab"), 2.0, 2.0)
    kit.decide(state, 2.0)
    message = message_of(state, state.gangs["b"], 1)
    assert message.preemption is not None
    assert (message.preemption.gang, message.preemption.reason.code) == ("own", "reclaimed")


def test_it_comes_home(kit: Kit) -> None:
    state = lent(kit)
    state.request(kit.gang("a"), 2.0, 2.0)
    held = state.ledger.hold_of("b-w-0")
    assert held is not None
    state.report(kit.report("n0", gpus=4, revision=2), 3.0)
    state.report(kit.report("n1", gpus=4, revision=2, holding={"b-w-0": held.placement.gpus}), 3.0)
    kit.decide(state, 3.0)
    assert message_of(state, state.gangs["b"], 1).lender is None
    assert state.known("b").lender is None


async def test_the_answers_say_who_lends_and_who_would(kit: Kit) -> None:
    state = lent(kit)
    async with served(state) as (_, client):
        assert (await client.get("/gangs/b")).json()["lender"] == "lab"
        shown = {gang["gang"]: gang for gang in (await client.get("/gangs")).json()["gangs"]}
        assert (shown["a"]["lender"], shown["b"]["lender"]) == (None, "lab")
        state.request(kit.gang("b"), 2.0, 2.0)
        state.report(kit.report("n1", gpus=4, revision=2), 3.0)
        state.request(asked(kit, "c"), 3.0, 3.0)
        kit.decide(state, 3.0)
        otherwise = (await client.get("/gangs/c")).json()["counterfactual"]
        assert otherwise["borrowing"] == {"startsNow": True, "lender": "lab"}


async def test_virtual_clusters_tell_what_they_lend_and_borrow(kit: Kit) -> None:
    state = lent(kit)
    async with served(state) as (_, client):
        told = (await client.get("/virtual-clusters")).json()["virtualClusters"]
        gpus = {"quota": 4, "guaranteed": 4, "opportunistic": 0, "free": 0, "usable": 0}
        assert told["default"]["gpus"] == gpus | {"lent": 0, "borrowed": 4}
        assert told["lab"]["gpus"] == gpus | {"guaranteed": 0, "lent": 4, "borrowed": 0}
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    metrics.note_virtual_clusters(state.core.cells.quotas(), state.core.questions.counts().wanted)
    found = {
        (sample.labels["virtual_cluster"], sample.labels["state"]): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "muster_scheduler_virtual_cluster_gpus"
    }
    assert {key: gpus for key, gpus in found.items() if gpus} == {
        ("lab", "quota"): 4,
        ("lab", "charged"): 4,
        ("lab", "lent"): 4,
        ("default", "quota"): 4,
        ("default", "charged"): 4,
        ("default", "borrowed"): 4,
    }
    metrics.note_users(state.core.cells.users())
    held = {
        tuple(sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "muster_scheduler_user_gpus"
    }
    assert held == {("default", "user", "own"): 4, ("default", "user", "borrowed"): 4}


async def test_of_whom_an_elastic_gang_has_what_it_has_grown_by_is_told(kit: Kit) -> None:
    state: State = kit.state(kit.report("n0", gpus=4), kit.report("n1", gpus=4), file=file())
    message = kit.gang("e", *kit.pods("e", 3, gpus=4))
    pods = tuple(pod.model_copy(update={"surplus": n > 0}) for n, pod in enumerate(message.pods))
    state.request(message.model_copy(update={"pods": pods, "borrow": True}), 0.0, 0.0)
    kit.decide(state, 0.0)
    async with served(state) as (_, client):
        shown = (await client.get("/gangs/e")).json()
        assert [pod["state"] for pod in shown["pods"]] == ["placed", "placed", "waiting"]
        assert (shown["lender"], shown["borrowed"]) == (None, {"lab": 4})


@pytest.mark.postgres
@pytest.mark.kafka
async def test_a_restart_knows_who_lends(
    scheduler: RunScheduler, kit: Kit, others: Others, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(CLUSTER))
    async with scheduler(cluster_file=path) as runtime:
        for node in ("n0", "n1"):
            await others.report(kit.report(node, gpus=4))
        for name in ("a", "b"):
            await others.ask(asked(kit, name, borrow=True))
            await others.until(lambda name=name: others.states(name) == ["placed"])  # type: ignore[misc]
        assert others.decisions["b"].lender == "lab"
        rows = await runtime.pool.fetch("SELECT gang, lender FROM gang ORDER BY gang")
        assert [(row["gang"], row["lender"]) for row in rows] == [("a", None), ("b", "lab")]
    async with scheduler(cluster_file=path):
        await others.ask(asked(kit, "own", vc="lab"))
        await others.until(lambda: others.states("b") == ["preempted"])
        assert others.decisions["b"].preemption.reason.code == "reclaimed"
