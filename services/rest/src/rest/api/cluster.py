"""The cluster: nodes and orders about them, virtual clusters, the queue, the audit log."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Annotated, Any, Literal

import structlog
from fastapi import Path, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from muster.contracts.node_orders import Order
from muster.counted import counted
from muster.errors import Rejected, Transient
from muster.ids import job_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rest.api.context import Address, Admin, Context, Here, User
from rest.api.logs import Held, until_stop
from rest.api.models import ShownCluster, ShownNode, ShownVirtualCluster
from rest.api.paging import Page, Paging
from rest.api.router import new_router
from rest.api.scheduling import Cells, Gangs, Queue, ShownAdvice
from rest.api.tokens import Done
from rest.cluster import (
    KnownNode,
    SchedulerNode,
    SchedulerNodes,
    gpus_in_sight,
    node_json,
    nodes_summary,
)
from rest.domain.times import iso
from rest.domain.virtual_clusters import VirtualClusters, no_virtual_cluster, virtual_cluster_json
from rest.handlers.order import no_node
from rest.peers import AS_OF
from rest.store import audit, node_orders

_log = structlog.get_logger()

router = new_router(tag="cluster")

MAX_TROUBLED = 1000
"""Nodes in trouble that one answer names; the rest is only counted."""

MOST_ADVISED = 64
"""Cells that can be asked for at once."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")

NodeName = Annotated[str, Path(max_length=255, description="The node.", examples=["node-7"])]
VirtualClusterName = Annotated[
    str, Path(max_length=255, description="The virtual cluster.", examples=["default"])
]


class NodePage(BaseModel):
    """A page of the nodes, by name, and how many there are on all pages."""

    nodes: list[ShownNode]
    total: int


class NodeOrdered(BaseModel):
    """What is ordered of a node."""

    model_config = ConfigDict(extra="forbid")

    value: Literal["cordon", "drain", "none"]


class NodeReleased(BaseModel):
    """The rule whose preflight job is to succeed before the node is used again."""

    model_config = ConfigDict(extra="forbid")

    rule: Annotated[str, Field(min_length=1, max_length=64, examples=["back"])]


class AuditEntry(BaseModel):
    """One write: ``username`` did ``action`` to ``object``, from ``address``."""

    id: int
    at: str
    username: str
    action: str
    object: str
    address: str
    detail: dict[str, Any] | None


class AuditPage(BaseModel):
    """A page of writes, newest first. A page with less than its limit is the last one."""

    entries: list[AuditEntry]


@router.get("/cluster/nodes", response_model=NodePage)
async def list_nodes(here: Here, _caller: User, page: Paging) -> Response:
    """The nodes, by name, as their agents report them. Simulated GPUs are marked. CPU and memory
    are limited as the cluster file says. A node that takes no pods though its agent reports no
    problem is `unusable`, and `problem` says why. While the Scheduler does not answer, all is as
    the agents report it.
    """
    nodes = here.cluster.nodes()
    shown = nodes[page.offset : page.offset + page.limit]
    return JSONResponse({"nodes": await _nodes_json(here, shown), "total": len(nodes)})


@router.get("/cluster/nodes/{name}", response_model=ShownNode)
async def get_node(name: NodeName, here: Here, _caller: User) -> Response:
    """One node."""
    node = here.cluster.node(name)
    if node is None:
        raise no_node(name)
    (content,) = await _nodes_json(here, [node])
    return JSONResponse(content)


async def _nodes_json(here: Context, nodes: Sequence[KnownNode]) -> list[dict[str, Any]]:
    """Nodes, sorted by name, with what stands for them and what the Scheduler answers."""
    between = {"first": nodes[0].report.node, "last": nodes[-1].report.node} if nodes else {}
    scheduled = await _scheduled(here, between) if nodes else {}
    async with here.pool.acquire() as conn:
        orders = await node_orders.standing_orders(conn)
    names = [node.report.node for node in nodes]
    return [
        node_json(node, orders.get(name), scheduled.get(name))
        for name, node in zip(names, nodes, strict=True)
    ]


async def _scheduled(here: Context, query: Mapping[str, str]) -> dict[str, SchedulerNode]:
    """The Scheduler's answer about some nodes, by name; nothing where it does not answer."""
    try:
        answer = await here.peers.ask_scheduler("/nodes", query)
        found = SchedulerNodes.model_validate(answer or {"nodes": []})
    except (Transient, ValidationError) as error:
        _log.info("nodes are shown as their agents report them", reason=str(error))
        return {}
    return {node.node: node for node in found.nodes}


@router.put("/cluster/nodes/{name}/order", status_code=202, response_model=Done)
async def order_node(
    name: NodeName, wanted: NodeOrdered, here: Here, caller: Admin, address: Address
) -> Done:
    """Cordon a node (nothing new is placed there), drain it (and what runs there leaves, at no cost
    to its users), or take the order back (`none`). The order outlives the node's restarts.
    """
    order, node = Order(wanted.value), here.cluster.node(name)
    before = await here.actions.order(name, order, caller, address, is_known=node is not None)
    was = "stood before" if order is before else f"was {(before or Order.NONE).value}"
    pods = "the node has not reported" if node is None else _fate_of_pods(node, order, before)
    return Done(message=f"{name}: order {order.value} ({was}); {pods}.")


@router.post("/cluster/nodes/{name}/release", status_code=202, response_model=Done)
async def release_node(
    name: NodeName, wanted: NodeReleased, here: Here, caller: Admin, address: Address
) -> Done:
    """Use a node again once a preflight job has succeeded there: that of a rule with `do: release`.
    If it fails, the node stays out, and the alert `PreflightFailed` has the reason.
    """
    return Done(message=await here.actions.release(name, wanted.rule, caller, address))


def _fate_of_pods(node: KnownNode, order: Order, before: Order | None) -> str:
    """The fate of the pods that the node has reported. After a cancelled drain, preempted pods
    still end.
    """
    pods = node.report.pods_of_jobs
    if not pods:
        return "no pod is there"
    jobs = len({job_of(pod.pod) for pod in pods})
    s = "s" if len(pods) == 1 else ""
    counts = f"{counted(len(pods), 'pod')} of {counted(jobs, 'job')}"
    if order is Order.DRAIN:
        return f"{counts} leave{s}"
    if before is Order.DRAIN:
        return f"{counts} {'is' if s else 'are'} there; preempted pods are still being stopped"
    return f"{counts} stay{s}"


@router.get("/cluster", response_model=ShownCluster)
async def get_cluster(here: Here, _caller: User) -> Response:
    """Virtual clusters with their cells and what is bound of them, and the nodes in trouble."""
    known = await here.virtual_clusters.ask()
    async with here.pool.acquire() as conn:
        orders = await node_orders.standing_orders(conn)
    scheduled = await _scheduled(here, {"troubled": "true"})
    nodes = here.cluster.nodes()
    content = {
        "asOf": known.as_of,
        "virtualClusters": _shown(here, known),
        "gpuTotal": gpus_in_sight(nodes),
        "nodes": nodes_summary(nodes, orders, scheduled, MAX_TROUBLED),
    }
    return JSONResponse(content)


@router.get("/queue", response_model=Queue)
@router.get("/cluster/queue", response_model=Queue, name="list_cluster_queue")
async def list_queue(here: Here, _caller: User, page: Paging) -> Response:
    """The waiting gangs with their reasons and expected starts, as the Scheduler answers. `limit`
    in the answer is the most that one answer has.
    """
    return await _from_scheduler(here, "/queue", page)


@router.get("/cluster/gangs", response_model=Gangs)
async def list_gangs(here: Here, _caller: User, page: Paging) -> Response:
    """The running gangs by id, as the Scheduler answers."""
    return await _from_scheduler(here, "/gangs", page)


async def _from_scheduler(here: Context, path: str, page: Page) -> Response:
    answer = await here.peers.must_ask_scheduler(path, asdict(page))
    if answer is None:
        raise Transient("The Scheduler's answer can't be read. Check its version and log.")
    return JSONResponse(answer)


@router.get("/cluster/cells", response_model=Cells)
async def list_cells(
    here: Here,
    _caller: User,
    page: Paging,
    address: Annotated[
        str | None, Query(max_length=1024, description="The cell with this address, and its parts.")
    ] = None,
    virtual_cluster: Annotated[
        str | None,
        Query(
            alias="virtualCluster",
            max_length=255,
            description="Only cells that are bound to this virtual cluster.",
        ),
    ] = None,
) -> Response:
    """Physical cells by address, as the Scheduler answers: nodes and the cells above them. With an
    address: that cell and everything in it. With a virtual cluster: the cells bound to it.
    """
    given = {"address": address, "virtualCluster": virtual_cluster}
    query = {name: value for name, value in given.items() if value is not None}
    answer = await here.peers.must_ask_scheduler("/cells", asdict(page) | query)
    if answer is None:
        raise Rejected("NoCellError", "There is no such cell, or no such virtual cluster.")
    return JSONResponse(answer)


@router.get("/advice", response_model=ShownAdvice)
async def get_advice(
    here: Here,
    _caller: Admin,
    level: Annotated[
        str | None, Query(max_length=255, description="The type of cell; a rack by default.")
    ] = None,
    cells: Annotated[
        int, Query(ge=1, le=MOST_ADVISED, description="How many cells are to be free.")
    ] = 1,
    chain: Annotated[
        str | None, Query(max_length=255, description="The chain of cells; any by default.")
    ] = None,
) -> Response:
    """The gangs to checkpoint and restart elsewhere so that cells of a type become wholly free.
    `level` is the type, a rack by default. The advice moves the fewest GPUs, then loses the least
    work. Muster moves nothing by itself.
    """
    given = {"level": level, "chain": chain}
    query = {name: value for name, value in given.items() if value is not None}
    answer = await here.peers.must_ask_scheduler("/advice", {"cells": cells, **query})
    if answer is None:
        raise Rejected("NoCellError", "There is no such type of cell, or no such chain.")
    return JSONResponse(answer)


LINES = "application/x-ndjson"
_MOMENT = "Seconds since 1970, or a time like 2026-01-31T13:00:00Z."


@router.get(
    "/cluster/export",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {"schema": {"type": "string"}}}}},
)
async def export_record(
    here: Here,
    _caller: Admin,
    since: Annotated[str, Query(max_length=64, description=f"The start. {_MOMENT}")],
    until: Annotated[
        str | None, Query(max_length=64, description=f"The end; now by default. {_MOMENT}")
    ] = None,
) -> Response:
    """A stretch of what the Scheduler was given, for `muster simulate`: the first line is the
    CLUSTER, the others are the EVENTS, from the last snapshot before ``since`` on. Times are
    seconds since 1970, or like 2026-01-31T13:00:00Z. `X-As-Of` is what other answers say as `asOf`.
    """
    query = {"since": since} | ({} if until is None else {"until": until})
    async with AsyncExitStack() as stack:
        record = await stack.enter_async_context(here.peers.open_record(query))
        headers = {} if record.as_of is None else {AS_OF: record.as_of}
        return Held(stack.pop_all(), _sent(here, record.content), LINES, headers)


async def _sent(here: Context, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The content. Raises Transient where this process stops, so that it does not look whole."""
    async for some in until_stop(here, content):
        if some is not None:
            yield some
    if here.stopping.is_set():
        raise Transient("This process stops.")


@router.get("/virtual-clusters", response_model=dict[str, ShownVirtualCluster])
async def list_virtual_clusters(here: Here, _caller: User) -> Response:
    """The virtual clusters, with what they own and use."""
    return JSONResponse(_shown(here, await here.virtual_clusters.ask()))


@router.get("/virtual-clusters/{name}", response_model=ShownVirtualCluster)
async def get_virtual_cluster(name: VirtualClusterName, here: Here, _caller: User) -> Response:
    """One virtual cluster."""
    if _NAME.fullmatch(name) is None:
        message = "A virtual cluster's name has letters, digits, _ and - only."
        raise Rejected("InvalidParametersError", message)
    known = await here.virtual_clusters.ask()
    if name not in known.virtual_clusters:
        raise no_virtual_cluster(name, known.virtual_clusters)
    return JSONResponse(_shown(here, known)[name])


def _shown(here: Context, known: VirtualClusters) -> dict[str, Any]:
    gpus = gpus_in_sight(here.cluster.nodes())
    return {
        name: virtual_cluster_json(found, known.as_of, gpus)
        for name, found in sorted(known.virtual_clusters.items())
    }


@router.get("/audit", response_model=AuditPage, tags=["audit"])
async def list_audit_entries(here: Here, _caller: Admin, page: Paging) -> Response:
    """Every write: who did what to which thing, from where."""
    async with here.pool.acquire() as conn:
        found = await audit.read(conn, page.offset, page.limit)
    entries = [
        {
            "id": entry.id,
            "at": iso(entry.at),
            "username": entry.username,
            "action": entry.action,
            "object": entry.object,
            "address": entry.address,
            "detail": entry.detail,
        }
        for entry in found
    ]
    return JSONResponse({"entries": entries})
