"""Every minute the accounting is compared with the placements, a little after each cycle. The log
names a gang with a difference, and a metric counts it.
"""

from typing import Any

import pytest
from muster.bus import Outgoing
from muster.contracts.notices import AccountingDrifted
from prometheus_client import CollectorRegistry
from scenes import Scene, config, gang, owning
from scheduler import auditor
from scheduler.auditor import Auditor
from scheduler.domain.core.cycle import Core
from scheduler.metrics import SchedulerMetrics
from scheduler.settings import SchedulerSettings
from structlog.testing import capture_logs

DRIFTED, AUDITS = "muster_scheduler_drifted_gangs", "muster_scheduler_audits_total"


class Clock:
    """As it is told, and ``step_s`` later each time that it is looked at."""

    now = step_s = 0.0

    def monotonic(self) -> float:
        self.now += self.step_s
        return self.now

    def time(self) -> float:
        return 1_000_000.0 + self.now


class Watched:
    """An auditor, its clock, and what it tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.clock = Clock()
        monkeypatch.setattr(auditor, "time", self.clock)
        self.registry = CollectorRegistry()
        metrics = SchedulerMetrics(self.registry)
        self.auditor = Auditor(SchedulerSettings(**settings), metrics)

    def value(self, name: str) -> float:
        found = self.registry.get_sample_value(name)
        assert found is not None
        return found

    def drift_of(self, gang: str) -> float | None:
        labels = {"gang": gang, "account": "quota"}
        return self.registry.get_sample_value("muster_scheduler_drift", labels)

    def after(self, seconds: float, core: Core) -> bool:
        self.clock.now += seconds
        return self.auditor.look(core)


@pytest.fixture
def core() -> Core:
    scene = Scene(config(x=owning(("rack", 2))))
    scene.asks(gang("one", "x", 2), gang("two", "x", 4, pods=2))
    found: Core = scene.core.core
    return found


def spoil(core: Core, times: int) -> None:
    """Its pods are counted once more, or once less."""
    core.state.charged["vc x", "v100"][0] += 8 * times


def test_a_drift_is_told_with_its_gang_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, core: Core
) -> None:
    watched = Watched(monkeypatch, audit_part_s=9.0)
    spoil(core, 1)
    with capture_logs() as logs:
        assert not watched.after(59.0, core)
        assert (watched.value(AUDITS), logs) == (0, [])
        watched.after(1.0, core)
        assert (watched.value(AUDITS), watched.value(DRIFTED)) == (1, 1)
        assert watched.drift_of("two") == 8
        (told,) = logs
        assert (told["log_level"], told["gang"], told["gangs"]) == ("error", "two", 1)
        assert told["drifts"] == [
            "quota of vc x, v100, priority 0: accounting has 18, placements have 10"
        ]
        watched.after(60.0, core)
        assert [each["gang"] for each in logs] == ["two", "two"]
        spoil(core, -1)
        watched.after(60.0, core)
    assert (watched.value(AUDITS), watched.value(DRIFTED)) == (3, 0)
    assert watched.drift_of("two") is None
    assert logs[-1]["event"] == "the accounting is right again"


def test_it_goes_on_after_each_cycle(monkeypatch: pytest.MonkeyPatch, core: Core) -> None:
    watched = Watched(monkeypatch, audit_part_s=0.0015)
    watched.clock.now, watched.clock.step_s, parts = 60.0, 0.001, 0
    while watched.auditor.look(core):
        parts += 1
    assert parts >= (len(core.gangs) + len(core.state.nodes)) // 2 - 1
    assert watched.value(AUDITS) == 1


def test_another_memory_is_looked_at_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, core: Core
) -> None:
    watched = Watched(monkeypatch, audit_part_s=9.0)
    spoil(core, 1)
    watched.after(60.0, core)
    assert list(watched.auditor.drifts) == ["two"]
    again = Scene(config(x=owning(("rack", 2)))).core.core
    assert not watched.after(1.0, again)  # it is not due again for a minute
    watched.after(59.0, again)
    assert (watched.auditor.drifts, watched.value(DRIFTED)) == ({}, 0)


class Taken:
    """A bus that takes everything."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    async def publish(self, records: list[Outgoing]) -> list[None]:
        self.records += records
        return [None for _ in records]


async def test_alerting_hears_of_each_audit_that_finds_a_drift(
    monkeypatch: pytest.MonkeyPatch, core: Core
) -> None:
    watched, bus = Watched(monkeypatch, audit_part_s=9.0), Taken()
    spoil(core, 1)
    for _ in range(2):
        watched.after(60.0, core)
        await watched.auditor.publish(bus)  # type: ignore[arg-type]
        await watched.auditor.publish(bus)  # type: ignore[arg-type]
    first, second = (
        AccountingDrifted.model_validate_json(each.value or b"") for each in bus.records
    )
    assert {(each.topic, each.key) for each in bus.records} == {("accounting-drifted", "two")}
    assert first.drifts == (
        "quota of vc x, v100, priority 0: accounting has 18, placements have 10",
    )
    assert (first.since, first.at <= second.at) == (second.since, True)
    spoil(core, -1)
    watched.after(60.0, core)
    await watched.auditor.publish(bus)  # type: ignore[arg-type]
    assert len(bus.records) == 2
