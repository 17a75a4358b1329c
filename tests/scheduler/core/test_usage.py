"""What a user's gangs use counts without a gap, also over a restart or a new configuration."""

from dataclasses import replace

import pytest
from scenes import config, gang, owning
from scheduler.domain.core.config import USUAL_ORDER, Policy
from scheduler.domain.core.cycle import Core

USER = "x", False, "user"


def a_core(half_life_s: float = 1e9) -> Core:
    policy = Policy(order_by=USUAL_ORDER, half_life_s=half_life_s)
    core = Core(config(policy=policy, x=owning(("rack", 1))))
    for node in ("n0", "n1", "n2", "n3"):
        core.nodes.set_node_health(node, True)
    return core


def running() -> Core:
    """A gang has run since 100."""
    core = a_core()
    core.request(gang("runs", "x", 2))
    core.cycle(100.0)
    return core


def used(core: Core) -> float:
    """What it has used when it ends at 400."""
    core.release("runs")
    core.cycle(400.0)
    row = core.rows.usage_of(USER)
    assert row is not None
    return row.used["v100"]


def test_the_use_before_a_restart_counts() -> None:
    before, after = running(), a_core()
    after.rows.begin_restoring()
    after.restore(before.exported("runs"), 200.0)
    for row in before.rows.usages():
        after.rows.restore_usage(row)
    after.rows.restored(300.0)
    after.cycle(300.0)
    assert used(after) == pytest.approx(used(before)) == pytest.approx(2 * 300.0)


def test_the_use_before_a_change_of_the_configuration_counts() -> None:
    before = running()
    policy = replace(before.policy, grace_s=7.0)
    after = before.changed(replace(before.forest.config, policy=policy), 200.0)
    after.cycle(300.0)
    assert used(after) == pytest.approx(2 * 300.0)


def test_a_gang_that_no_cycle_has_seen_is_forgotten() -> None:
    before, after = running(), a_core()
    after.rows.begin_restoring()
    after.restore(before.exported("runs"), 200.0)
    after.forget("runs")
    after.rows.restored(300.0)
    assert after.rows.usage_of(USER) is None
