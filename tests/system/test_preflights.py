"""Nodes that are cordoned or drained are tested, and come back, through all five services."""

from typing import Any

import pytest
from whole_muster import Muster, a_job, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ORDER = "/api/v2/cluster/nodes/node-1/order"


async def order(muster: Muster, value: str) -> None:
    answer = await muster.call("PUT", ORDER, json={"value": value})
    assert answer.status_code == 202, answer.text


async def test_only_a_job_that_tests_a_drained_node_runs_there(muster: Muster) -> None:
    await order(muster, "drain")
    plain = await muster.submit(a_job("plain", gpus=1))

    async def reason() -> Any:
        return (await muster.job(plain))["jobStatus"].get("reason") or {}

    await eventually(reason, lambda it: it.get("code") == "health")
    text = {"Content-Type": "text/yaml"}
    asked = {"content": a_job("test", gpus=8), "headers": text}
    elsewhere = await muster.call("POST", "/api/v2/jobs?node=node-9", **asked)
    assert elsewhere.status_code == 404, elsewhere.text
    tested = await muster.call("POST", "/api/v2/jobs?node=node-1", **asked)
    assert tested.status_code == 202, tested.text
    assert await muster.end_of(tested.json()["name"]) == "SUCCEEDED"
    assert await muster.state(plain) == "WAITING"
    await order(muster, "none")
    assert await muster.end_of(plain) == "SUCCEEDED"
    await eventually(muster.unsettled, lambda count: count == 0)
