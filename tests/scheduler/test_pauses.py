"""The garbage collector runs when it is asked to, and cycles don't pile up."""

import gc
import weakref
from collections.abc import Iterator

import pytest
from scheduler.pauses import TIDIES_PER_SETTLE, Collector


class Knot:
    """A value that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    """What the test process had set aside is set aside after the test too."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    one.settle()
    yield one
    one.close()


def test_nothing_is_collected_in_the_middle_of_work(collector: Collector) -> None:
    knot = weakref.ref(Knot())
    kept = [[number] for number in range(100_000)]
    assert knot() is not None
    assert len(kept) == 100_000


def test_new_cycles_go_when_it_tidies(collector: Collector) -> None:
    knot = weakref.ref(Knot())
    collector.tidy()
    assert knot() is None


def test_cycles_that_outlived_a_tidying_go_when_it_settles(collector: Collector) -> None:
    knot = Knot()
    collector.tidy()
    gone = weakref.ref(knot)
    del knot
    collector.tidy()
    assert gone() is not None
    collector.settle()
    assert gone() is None


def test_only_what_replaces_something_is_looked_at_as_a_whole(collector: Collector) -> None:
    knot = weakref.ref(Knot())
    collector.hold()
    collector.filled()
    assert knot() is not None
    later = weakref.ref(Knot())
    collector.filled()
    assert (knot(), later()) == (None, None)


def test_it_says_when_settling_is_due(collector: Collector) -> None:
    for _ in range(TIDIES_PER_SETTLE):
        assert not collector.is_settling_due
        collector.tidy()
    assert collector.is_settling_due
    collector.settle()
    assert not collector.is_settling_due


def test_python_collects_again_when_it_is_closed() -> None:
    collector = Collector()
    collector.settle()
    assert not gc.isenabled()
    collector.close()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
