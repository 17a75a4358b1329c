"""Which partitions an agent reads, over changes of their number."""

from __future__ import annotations

from muster.bus import partition_of
from runtime_agent.reader import partitions_now
from runtime_agent.settings import AgentSettings
from runtime_agent.store import Partitions

SETTINGS = AgentSettings(node="node-a", old_partition_s=100.0)
FOUR, FIVE = partition_of("node-a", 4), partition_of("node-a", 5)


def test_after_a_change_of_their_number_the_old_partition_is_read_for_its_time() -> None:
    assert FOUR != FIVE
    before = partitions_now(None, "bus", 4, SETTINGS, 0.0)
    assert before == Partitions("bus", 4)
    after = partitions_now(before, "bus", 5, SETTINGS, 10.0)
    assert after == Partitions("bus", 5, {FOUR: 110.0})
    assert partitions_now(after, "bus", 5, SETTINGS, 109.0) == after
    assert partitions_now(after, "bus", 5, SETTINGS, 110.0) == Partitions("bus", 5)


def test_a_partition_that_is_gone_or_the_own_is_not_read_as_an_old_one() -> None:
    assert partitions_now(Partitions("bus", 5, {4: 50.0}), "bus", 4, SETTINGS, 0.0).retired.get(
        4
    ) is None  # fmt: skip
    back = partitions_now(Partitions("bus", 5, {FOUR: 50.0}), "bus", 4, SETTINGS, 0.0)
    assert FOUR not in back.retired


def test_a_bus_of_another_name_has_no_old_partitions() -> None:
    before = Partitions("bus", 5, {FOUR: 50.0})
    assert partitions_now(before, "another", 4, SETTINGS, 0.0) == Partitions("another", 4)
