"""The cluster: nodes, virtual clusters, the queue, the audit log."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, Response
from muster.errors import Rejected
from pydantic import BaseModel

from rest.api.context import Admin, Context, Here, User
from rest.api.models import ShownNode, ShownVirtualCluster
from rest.cluster import node_json, totals
from rest.store import audit

router = APIRouter(tags=["cluster"])

DEFAULT_CLUSTER = "default"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")

Name = Annotated[str, Path(max_length=255)]


class NodeList(BaseModel):
    """All nodes."""

    nodes: list[ShownNode]


class AuditPage(BaseModel):
    """Writes, newest first. ``before``: ask with it for the next page."""

    entries: list[dict[str, Any]]
    before: int | None


@router.get("/cluster/nodes", response_model=NodeList)
async def list_nodes(here: Here, _caller: User) -> Response:
    """The nodes as their agents report them. GPUs that are pretended are marked as simulated."""
    return JSONResponse({"nodes": [node_json(node) for node in here.cluster.nodes()]})


@router.get("/cluster/nodes/{name}", response_model=ShownNode)
async def get_node(name: Name, here: Here, _caller: User) -> Response:
    """One node."""
    for node in here.cluster.nodes():
        if node.report.node == name:
            return JSONResponse(node_json(node))
    raise Rejected("NoNodeError", f"No node {name[:80]} has been reported.")


@router.get("/cluster/queue", response_model=dict[str, Any])
async def queue(
    here: Here, _caller: User, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> Response:
    """What waits and why, in the Scheduler's own words."""
    answer = await here.peers.ask_scheduler("/queue", {"limit": limit})
    if answer is None:
        message = "There is no Scheduler to ask: MUSTER_SCHEDULER_URL is not set."
        raise Rejected("NotConfiguredError", message)
    return JSONResponse(answer)


@router.get("/virtual-clusters", response_model=dict[str, ShownVirtualCluster])
async def list_virtual_clusters(here: Here, _caller: User) -> Response:
    """The virtual clusters: so far one, which has everything."""
    return JSONResponse({DEFAULT_CLUSTER: _default(here)})


@router.get("/virtual-clusters/{name}", response_model=ShownVirtualCluster)
async def get_virtual_cluster(name: Name, here: Here, _caller: User) -> Response:
    """One virtual cluster."""
    if _NAME.fullmatch(name) is None:
        message = "A virtual cluster's name has letters, digits, _ and - only."
        raise Rejected("InvalidParametersError", message)
    if name != DEFAULT_CLUSTER:
        raise Rejected("NoVirtualClusterError", f"There is no virtual cluster {name}.")
    return JSONResponse(_default(here))


def _default(here: Context) -> dict[str, Any]:
    amounts = totals(here.cluster.nodes())
    total, used = _amounts(amounts["total"]), _amounts(amounts["used"])
    share = 100 * used["gpu"] / total["gpu"] if total["gpu"] else 0.0
    return {
        "capacity": 100,
        "usedCapacity": round(share, 1),
        "maxCapacity": 100,
        "dedicated": False,
        "status": "running",
        "resourcesUsed": used,
        "resourcesGuaranteed": total,
        "resourcesTotal": total,
    }


def _amounts(values: dict[str, int]) -> dict[str, int]:
    return {**values, "vCores": values["cpu"], "GPUs": values["gpu"]}


@router.get("/audit", response_model=AuditPage, tags=["audit"])
async def read_audit(
    here: Here,
    _caller: Admin,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Every write: who did what to which thing, from where."""
    async with here.pool.acquire() as conn:
        found = await audit.read(conn, before, limit)
    entries = [
        {
            "id": entry.id,
            "time": int(entry.at.timestamp() * 1000),
            "username": entry.username,
            "action": entry.action,
            "object": entry.object,
            "address": entry.address,
            "detail": entry.detail,
        }
        for entry in found
    ]
    return JSONResponse({"entries": entries, "before": found[-1].id if found else None})
