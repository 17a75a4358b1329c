"""What administrators set, over REST, and what the Scheduler's double answers about it."""

from typing import Any

PATH = "/api/v2/cluster/config"
CHECK, SHOW = "/configuration/check", "/configuration"
WHAT_IF = "/configuration/what-if"
WAIT_S = 60
SPEECH = {"virtualClusters": {"speech": {"cells": [{"type": "node", "count": 2}]}}}
VISION = {"virtualClusters": {"vision": {"pins": ["desk"]}}, "policy": {"graceSeconds": 5}}
WARNING = {"path": "virtualClusters.speech", "line": 2, "message": "owns nothing"}
PROBLEM = {"path": "virtualClusters.speech.cells[0].count", "line": 3, "message": "is too much"}
TEXT = "virtualClusters:\n  speech: {cells: [{type: node, count: 2}]}\n"


def can_be_set(content: Any, *warnings: Any) -> dict[str, Any]:
    return {"asOf": 1, "content": content, "errors": [], "warnings": list(warnings)}


def runs(version: int | None, revision: int | None, **more: Any) -> dict[str, Any]:
    return {
        "asOf": 9,
        "revision": revision,
        "version": version,
        "isHonoured": True,
        "newest": {"revision": revision, "version": version},
        "problems": [],
        "inForce": {"virtualClusters": {"default": {"cells": [], "pins": []}}, "policy": {}},
    } | more


async def put(rest: Any, after: int, text: str = TEXT, **query: str) -> Any:
    headers = {"If-Match": f'"{after}"'}
    return await rest.client.put(PATH, content=text, headers=headers, params=query)


async def audited(rest: Any) -> list[tuple[str, str, Any]]:
    entries = (await rest.client.get("/api/v2/audit")).json()["entries"]
    return [
        (e["action"], e["object"], e["detail"])
        for e in entries
        if e["action"].startswith("config.")
    ]
