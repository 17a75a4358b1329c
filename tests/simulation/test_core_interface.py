"""The core by its interface: what is stored of it, and restored."""

from dataclasses import replace

from scenes import FREE, config, gang, owning
from scheduler.domain.core import interface
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import PodPlace, Restored
from scheduler.domain.cores import core_of
from scheduler_audit import audited

KEEPING = replace(FREE, is_backfilling=True, assumed_s=100.0)


def a_core(configuration: ClusterConfig) -> interface.Core:
    """An empty one."""
    return core_of(configuration)


def test_rows_are_restored_as_they_were() -> None:
    configuration = config(policy=KEEPING, a=owning(("rack", 2)))
    core = a_core(configuration)
    core.request(gang("low", "a", 4, 3, priority=0))
    core.cycle(1.0)
    core.request(gang("large", "a", 4, 2, priority=0))
    core.cycle(2.0)
    assert core.rows.take_changed().reservations == {"large"}
    core.request(gang("high", "a", 4, 3, priority=1))
    core.cycle(3.0)
    touched = core.rows.take_changed()
    assert "high" in touched.gangs, "it has a nominated placement"
    assert [each.for_job for each in touched.preemptions] == ["high"]
    assert core.rows.take_changed() == interface.ChangedRows(reservations=touched.reservations)
    assert core.wakes_at() is not None
    again = a_core(configuration)
    again.rows.begin_restoring()
    for name in ("low", "high"):
        again.restore(core.exported(name), 3.0)
    again.request(gang("large", "a", 4, 2, priority=0))
    again.note_published("large", "quota")
    for preemption in touched.preemptions:
        again.rows.restore_preemption(preemption)
    for reservation in core.rows.reservations():
        again.rows.restore_reservation(reservation)
    again.rows.restored(3.0)
    again.note_tried(is_settled=True)
    assert again.was_tried()
    waiting = again.questions.counts().waiting
    assert again.questions.has_at_most(waiting)
    assert not again.questions.has_at_most(waiting - 1)
    assert again.rows.preemptions() == core.rows.preemptions()
    assert again.rows.reservations() == core.rows.reservations()
    assert again.leaving() == core.leaving()
    assert again.cycle(3.0) == []
    assert not audited(again)
    again.forget("large")
    assert again.gang("large") is None
    assert again.questions.counts()[:3] == (1, 1, 0)


def test_nothing_is_published_of_a_gang_that_is_over() -> None:
    core = a_core(config(a=owning(("rack", 2))))
    core.request(gang("one", "a", 4))
    core.cycle(1.0)
    again = a_core(config(a=owning(("rack", 1)), b=owning(("rack", 1))))
    for number in range(3):
        place = PodPlace("p0", f"n{number}", (0, 1, 2, 3))
        again.restore(Restored(gang(f"g{number}", "a", 4), (place,), started_at=1.0), 1.0)
    assert again.unpublished() == {"g2"}, "it is downgraded"
    again.release("g2")
    assert again.cycle(2.0) == []
