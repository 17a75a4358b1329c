"""Outsiders follow events: by server-sent events of REST, and with a plain Kafka client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from consumer_example import first_event
from muster.contracts.jobs import JobState
from muster.contracts.nodes import NodeLost
from rest.domain.event_stream import format_positions, parse_positions

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

EVENTS = "/api/v2/events"
DEADLINE_S = 60.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_ALERTS_S = 1e9
"""No alert about a job that waits long comes among the events."""


class Following:
    """One stream: its events as they come. The first is where it begins."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def event(self) -> dict[str, str]:
        """The next event that is more than a comment."""
        found: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_S):
            async for line in self._lines:
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(": ")
                    found[name] = value
                elif found:
                    return found
        raise AssertionError("the stream has ended")

    async def jobs(self, count: int) -> list[tuple[str, str]]:
        """The jobs of so many events, with the ids after them."""
        events = [await self.event() for _ in range(count)]
        return [(json.loads(it["data"])["data"]["job"], it["id"]) for it in events]


async def test_events_are_cloudevents_and_go_on_where_a_client_left_off(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest(long_wait_s=NO_ALERTS_S) as api:
        await cluster.job("before", 1, JobState.WAITING)
        async with api.admin.stream("GET", EVENTS) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            stream = Following(response.aiter_lines())
            begun = await stream.event()
            await cluster.job("j1", 1, JobState.WAITING)
            event = await stream.event()
            judged = JSONFormat().read(CloudEvent, event["data"])
            assert (event["event"], judged.get_type()) == ("job-updated", "muster.job-updated.v1")
            assert judged.get_data()["job"] == "j1"
        for job in ("j2", "j3"):
            await cluster.job(job, 1, JobState.WAITING)
        for last, wanted in ((begun["id"], ["j1", "j2", "j3"]), (event["id"], ["j2", "j3"])):
            headers = {"Last-Event-ID": last}
            async with api.admin.stream("GET", EVENTS, headers=headers) as response:
                stream = Following(response.aiter_lines())
                await stream.event()
                jobs = await stream.jobs(len(wanted))
            assert sorted(job for job, _ in jobs) == wanted  # several partitions: in any order


async def test_only_the_asked_types_come_and_alerts_only_to_whom_they_concern(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    query = {"type": ["alert-raised", "node-lost"]}
    async with (
        with_rest(stuck_after_s=0.2) as api,
        await api.log_in("ada") as ada,
        await api.log_in("bob", ownsVirtualCluster=["default"]) as bob,
        ada.stream("GET", EVENTS, params=query) as hers,
        api.admin.stream("GET", EVENTS, params=query) as all_,
        bob.stream("GET", EVENTS, params=query) as owners,
    ):
        streams = [Following(it.aiter_lines()) for it in (hers, all_, owners)]
        for stream in streams:
            await stream.event()
        await cluster.job("j1", 1, JobState.STOPPING, user="eve")
        for stream in streams[1:]:
            raised = await stream.event()
            assert json.loads(raised["data"])["data"]["labels"]["job"] == "j1"
        await cluster.job("j2", 1, JobState.STOPPING, user="ada")
        raised = await streams[0].event()
        assert json.loads(raised["data"])["data"]["labels"]["job"] == "j2"
        lost = NodeLost(node="n1", lease=1, since=NOW, silent_s=30, pods=())
        await cluster.publish("node-lost", "n1", lost)
        assert (await streams[0].event())["event"] == "node-lost"


async def test_streams_of_one_user_are_bounded(with_rest: Callable[..., Any]) -> None:
    async with (
        with_rest(event_streams_per_user=1) as api,
        api.admin.stream("GET", EVENTS) as response,
    ):
        await Following(response.aiter_lines()).event()
        assert (await api.admin.get(EVENTS)).status_code == 429


async def test_what_is_gone_is_a_gap_and_what_is_no_position_is_refused(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest(long_wait_s=NO_ALERTS_S) as api:
        await cluster.job("j1", 1, JobState.WAITING)
        async with api.admin.stream("GET", EVENTS) as response:
            begun = await Following(response.aiter_lines()).event()
        bus, positions = parse_positions(begun["id"])
        far = format_positions(bus or "", dict.fromkeys(positions, 999_999))
        async with api.admin.stream("GET", EVENTS, headers={"Last-Event-ID": far}) as response:
            stream = Following(response.aiter_lines())
            assert (await stream.event())["event"] == "gap"
            assert [job for job, _ in await stream.jobs(1)] == ["j1"]
        for wrong in ("x", "node-heartbeat=AA", "job-updated=gA"):
            answer = await api.admin.get(EVENTS, headers={"Last-Event-ID": wrong})
            assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParametersError")


async def test_a_stream_of_a_bus_that_was_replaced_ends_and_goes_on_with_a_gap(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with with_rest(long_wait_s=NO_ALERTS_S) as api:
        async with api.admin.stream("GET", EVENTS) as response:
            lines = response.aiter_lines()
            stream = Following(lines)
            await stream.event()
            await cluster.job("j1", 1, JobState.WAITING)
            ((_, last),) = await stream.jobs(1)
            cluster.broker.kill()
            cluster.broker.start()
            await cluster.job("j1", 2, JobState.WAITING)  # at the place of the one before
            async with asyncio.timeout(DEADLINE_S):
                left = [line async for line in lines]
            assert [it for it in left if it.startswith((": The", "id"))] == [
                ": The bus is another one."
            ]
        async with api.admin.stream("GET", EVENTS, headers={"Last-Event-ID": last}) as response:
            stream = Following(response.aiter_lines())
            assert (await stream.event())["event"] == "gap"
            assert [job for job, _ in await stream.jobs(1)] == ["j1"]


async def test_a_partition_that_is_new_since_then_is_read_from_its_start(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    jobs = [f"j{number}" for number in range(12)]
    async with with_rest(long_wait_s=NO_ALERTS_S) as api:
        for job in jobs:
            await cluster.job(job, 1, JobState.WAITING)
        before = "job-updated=AA"  # of a time with one partition
        async with api.admin.stream("GET", EVENTS, headers={"Last-Event-ID": before}) as response:
            stream = Following(response.aiter_lines())
            begun = await stream.event()
            _, positions = parse_positions(begun["id"])
            assert len([topic for topic, _ in positions if topic == "job-updated"]) > 1
            assert sorted(job for job, _ in await stream.jobs(12)) == sorted(jobs)


async def test_the_example_follows_events_with_a_plain_kafka_client(cluster: Any) -> None:
    async with cluster.alerting(stuck_after_s=0.2):
        await cluster.job("j1", 1, JobState.STOPPING)
        await cluster.received("alert-raised", 1)
        line = await first_event(cluster.broker.bootstrap, "alert-raised")
    assert line.startswith("muster.alert-raised.v1 ")
    assert "'job': 'j1'" in line


async def test_a_stream_ends_when_its_user_may_see_less(
    cluster: Any, with_rest: Callable[..., Any]
) -> None:
    async with (
        with_rest(stream_heartbeat_s=0.05) as api,
        await api.log_in("bob", ownsVirtualCluster=["default"]) as bob,
        bob.stream("GET", EVENTS) as response,
    ):
        lines = response.aiter_lines()
        await Following(lines).event()
        change = {"data": {"username": "bob", "ownsVirtualCluster": []}, "patch": True}
        (await api.admin.put("/api/v2/users", json=change)).raise_for_status()
        async with asyncio.timeout(DEADLINE_S):
            assert [line async for line in lines if "rights have changed" in line]
