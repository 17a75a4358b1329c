"""What is read about nodes on the bus, and what is said there about them."""

from collections.abc import Sequence

import pytest
from muster.bus import Bus, Outgoing
from muster.contracts.node_orders import NODE_SETTING, Order
from muster.contracts.notices import SettingChanged
from muster.contracts.topics import Service
from muster.metrics import PlumbingMetrics
from muster.records import Received
from prometheus_client import CollectorRegistry
from scheduler.domain.rules import Rules
from scheduler.domain.stored import Stored
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from scheduler.store.nodes import KnownNode
from scheduler.watch import Watch

SETTING = f"{NODE_SETTING}n0"


def a_watch() -> Watch:
    settings, registry = SchedulerSettings(), CollectorRegistry()
    bus = Bus(settings, Service.SCHEDULER, PlumbingMetrics(registry))
    metrics, state = SchedulerMetrics(registry), Stored(Rules())
    return Watch(bus, settings, metrics, state, "me", lambda: None)


def read(watch: Watch, revision: int, order: Order | None) -> None:
    """A record about the node; None: that there is no order any more."""
    record = Received("settings-changed", 0, 0, SETTING, {"ce_id": f"x/{SETTING}/{revision}"}, None)
    value = {"node": "n0", "order": order, "by": "admin", "at": "2026-01-01T00:00:00Z"}
    message = SettingChanged(setting=SETTING, revision=revision, value=value)
    watch.on_setting(record, None if order is None else message)


@pytest.mark.parametrize(
    ("read_first", "read_last", "stands"),
    [
        ((6, Order.DRAIN), (5, Order.CORDON), Order.DRAIN),
        ((6, None), (5, Order.DRAIN), Order.NONE),
        ((6, Order.DRAIN), (5, None), Order.DRAIN),
        ((5, None), (5, Order.DRAIN), Order.NONE),
        ((5, Order.DRAIN), (5, None), Order.NONE),
        ((5, Order.DRAIN), (5, Order.DRAIN), Order.DRAIN),
        ((5, None), (6, Order.DRAIN), Order.DRAIN),
    ],
)
def test_the_newest_order_stands_in_whatever_order_they_are_read(
    read_first: tuple[int, Order | None], read_last: tuple[int, Order | None], stands: Order
) -> None:
    """After a change of the topic's partitions the older may be read last."""
    watch = a_watch()
    read(watch, *read_first)
    read(watch, *read_last)
    assert watch.state.orders.get("n0", Order.NONE) == stands


def test_after_somebodys_own_null_record_any_order_counts() -> None:
    watch = a_watch()
    read(watch, 6, Order.DRAIN)
    watch.on_setting(Received("settings-changed", 0, 1, SETTING, {}, None), None)
    assert watch.state.orders.get("n0", Order.NONE) == Order.NONE
    read(watch, 1, Order.DRAIN)
    assert watch.state.orders["n0"] == Order.DRAIN


async def test_that_many_nodes_are_lost_is_said_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One node after the other would take so long that no lease is judged meanwhile."""
    watch, said, steps = a_watch(), set[tuple[str, str]](), 0

    async def publish(_: Bus, records: Sequence[Outgoing]) -> list[None]:
        nonlocal steps
        steps += 1
        said.update((record.topic, record.key) for record in records)
        return [None] * len(records)

    monkeypatch.setattr(Bus, "publish", publish)
    names = [f"n{n}" for n in range(2000)]
    for name in names:
        watch.state.ledger.restore_node(name, lease=1, is_lost=True, size=None)
    known = {name: KnownNode(name, 1, is_lost=True, lost_since=None) for name in names}
    await watch.publish(known)
    assert said == {("node-lost", name) for name in names}
    assert steps < 10
    said.clear()
    await watch.publish(known)
    assert said == set(), "it is said again after a while only"
