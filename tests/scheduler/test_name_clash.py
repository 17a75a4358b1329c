"""Two machines with one node name, over a real database and a broker."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import pytest
from cli.embedded.process import free_port
from muster.service import Runtime
from scheduler_answers import asking
from scheduler_watched import measured, until

Kit = Any
Others = Any
RunScheduler = Callable[..., AbstractAsyncContextManager[Runtime]]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

LEASE_S = 2.0


async def report(kit: Kit, others: Others, journal: str, revision: int) -> None:
    """One of the machines reports itself, as agents do now and then."""
    await others.report(
        kit.report(
            "n0",
            gpus=2,
            revision=revision,
            journal=journal,
            address=f"address-{journal}",
            at=datetime.now(UTC),  # noqa: TID251 - an agent looks at the clock
        )
    )


async def placed(kit: Kit, others: Others) -> None:
    """A gang runs on the machine whose journal is a."""
    await report(kit, others, "a", 1)
    await others.ask(kit.gang("g", *kit.pods("g", 1, gpus=1)))
    await others.until(lambda: others.states("g") == ["placed"])


async def begin_twin(kit: Kit, others: Others) -> None:
    """Another machine of that name comes; both report again and again until that is noticed."""
    others.twins["n0"], revision = "b", 2
    while not others.clashed:
        await report(kit, others, "b", revision)
        await report(kit, others, "a", revision)
        await asyncio.sleep(0.05)
        revision += 1


async def test_nothing_is_placed_under_a_name_that_clashes_and_what_is_placed_stays(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    port = free_port()
    async with scheduler(port, lost_repeat_s=0.2) as runtime:
        await placed(kit, others)
        before = others.decisions["g"]
        await begin_twin(kit, others)
        first = others.clashed[0]
        assert {(first.journal, first.address), (first.other_journal, first.other_address)} == {
            ("a", "address-a"),
            ("b", "address-b"),
        }
        await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=1)))
        await others.until(lambda: others.states("h") == ["waiting"])
        reason = others.decisions["h"].reason
        assert (reason.code, "n0" in reason.text) == ("health", True)
        async with asking(port) as client:
            (node,) = (await client.get("/nodes")).json()["nodes"]
            assert (node["journal"], node["gpusFree"], node["pods"]) == ("a", 0, ["g-w-0"])
            assert "address-a and address-b" in node["trouble"]
        assert measured(runtime, "node_name_clashes") == 1
        told = len(others.clashed)
        await others.until(lambda: len(others.clashed) > told)
        assert {notice.since for notice in others.clashed} == {first.since}
        assert others.decisions["g"] == before
        assert before.pods[0].journal == "a"
    async with scheduler():  # what both have reported lately is known after a restart
        told = len(others.clashed)
        await others.until(lambda: len(others.clashed) > told)
        assert others.states("h") == ["waiting"]


async def test_a_clash_is_over_when_one_machine_reports_no_more(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    async with scheduler(clash_quiet_s=3.0) as runtime:
        await placed(kit, others)
        await begin_twin(kit, others)
        others.twins.clear()
        await others.ask(kit.gang("h", *kit.pods("h", 1, gpus=1)))
        await others.until(lambda: others.states("h") == ["placed"])
        assert others.decisions["h"].pods[0].journal == "a"
        await until(lambda: measured(runtime, "node_name_clashes") == 0)


async def test_a_node_is_lost_with_the_machine_that_has_its_pods_whoever_else_has_its_name(
    kit: Kit, scheduler: RunScheduler, others: Others
) -> None:
    """And as long as that one is heard, it is neither lost nor back."""
    async with scheduler(lease_timeout_s=LEASE_S) as runtime:
        await placed(kit, others)
        await begin_twin(kit, others)
        await asyncio.sleep(2 * LEASE_S)  # the time is the test
        assert (others.lost, others.returned) == ([], [])
        assert others.states("g") == ["placed"]
        del others.alive["n0"]
        await others.until(lambda: others.states("g") == ["lost"])
        await others.until(lambda: others.lost)
        assert measured(runtime, "nodes_lost_total") == 1
