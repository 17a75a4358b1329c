"""The core with one state by its interface: it shows and answers what the present one does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scenes import FREE, config, gang, owning
from scheduler.domain.core import interface
from scheduler.domain.core.config import ClusterConfig
from scheduler.domain.core.model import Gang, Kind, PodPlace, Restored, Role
from scheduler.domain.core.old_core import OldCore
from scheduler.domain.core.cycle import Core

KEEPING = replace(FREE, is_backfilling=True, assumed_s=100.0)


def a_core(configuration: ClusterConfig) -> interface.Core:
    """The core with one state has all of the interface: the types are checked."""
    return Core(configuration)


def elastic(name: str, least: int, *pods: str) -> Gang:
    """A gang that can start with some of its pods of a node each."""
    return Gang(name, "a", "u", 0, (Role(Kind(4), pods, "worker", least),))


def told(core: interface.Core) -> Iterator[Any]:
    """All gangs after each step of a story, and what is answered about each."""
    names = ["e", "first", "guest", "large", "low"]

    def look(now: float) -> list[Any]:
        core.cycle(now)
        known = [name for name in names if core.gang(name) is not None]
        questions = core.questions
        return [
            [shown(core.gang(name)) for name in known],
            sorted(core.gang_ids()),
            sorted(core.leaving()),
            questions.counts(),
            questions.first(9),
            [questions.before(name) for name in known if waits(core, name)],
            [ahead(core, name) for name in known],
            core.unpublished(),
            core.is_under_way,
        ]

    core.request(elastic("e", 1, "p0", "p1", "p2"))
    yield look(1.0)
    core.request(gang("low", "a", 4, priority=0, min_run_s=None))
    core.request(gang("guest", "a", 4, priority=-1))
    yield look(2.0)
    core.want_more("e", (Role(Kind(4), ("p3",), "worker"),))
    yield look(3.0)
    core.request(gang("first", "a", 4, priority=1))
    yield look(4.0)
    core.grow("e", (Role(Kind(4), ("p4",), "server"),))
    yield look(5.0)
    core.request(gang("large", "a", 4, 2, priority=0))
    yield look(6.0)
    core.release("low")
    core.release("guest")
    yield look(7.0)
    core.release_pod("e", "p1")
    core.release_pod("e", "p2")
    yield look(8.0)


def ahead(core: interface.Core, name: str) -> Any:
    """The present core counts each surplus pod as one that waits, too."""
    found = core.questions.ahead(name)
    return found and found._replace(waiting=0)


def waits(core: interface.Core, name: str) -> bool:
    found = core.gang(name)
    return found is not None and found.is_waiting


def shown(found: interface.GangState | None) -> Any:
    """Roles by their pods; the code of the last reason may be another."""
    assert found is not None
    return replace(
        found,
        gang=found.gang.id,
        waiting=sorted((pod, r.name, r.least) for r in found.waiting for pod in r.pods),
        elastic=sorted((pod, r.name) for r in found.elastic for pod in r.pods),
        published=None,
    )


def test_both_cores_show_and_answer_the_same() -> None:
    configuration = config(a=owning(("rack", 2)))
    old: Any = OldCore(configuration)
    both = zip(told(a_core(configuration)), told(old), strict=True)
    for number, (mine, other) in enumerate(both):
        assert mine == other, number


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
    assert again.rows.preemptions() == core.rows.preemptions()
    assert again.rows.reservations() == core.rows.reservations()
    assert again.leaving() == core.leaving()
    assert again.cycle(3.0) == []
    assert not drifts(again)
    again.forget("large")
    assert again.gang("large") is None
    assert again.questions.counts() == (1, 1, 0)


def drifts(core: interface.Core) -> list[interface.Drift]:
    steps = core.audit()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)


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
