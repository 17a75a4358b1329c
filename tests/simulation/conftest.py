"""Suites that run on both cores, as long as there are two."""

import core_door
import pytest
from scheduler.domain.core.cycle import Core as OldCore
from scheduler.domain.core.cycle import Core

BOTH = {"test_hived_faults", "test_hived_requests", "test_hived_scheduling"}

DIFFERENT = {
    "test_c1_chains_share_a_leaf_type_and_a_machine_is_in_several_chains": (
        "pods of one kind are in one chain: a gang that needs several chains waits"
    ),
    "test_s2_a_gang_spans_chains_and_mixes_pinned_and_other_cells": "the same",
    "test_s6_nobody_is_downgraded_where_that_would_not_help": (
        "the reason is `shape`, not `health`: nobody waits longer"
    ),
    "test_s7_a_reservation_ends_when_its_place_turns_bad_or_it_is_withdrawn": (
        "nothing is published of a gang that is gone: nobody waits longer"
    ),
}
"""Tests that the core with one state fails, with what is different."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of these suites run once for each core."""
    suite = metafunc.module.__name__.rpartition(".")[2]
    if suite in BOTH and "core_class" in metafunc.fixturenames:
        reason = DIFFERENT.get(metafunc.function.__name__)
        marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
        cores = [OldCore, pytest.param(Core, marks=marks)]
        metafunc.parametrize("core_class", cores, indirect=True)


@pytest.fixture(autouse=True)
def core_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core of every `CoreDoor`."""
    monkeypatch.setattr(core_door, "CORE", getattr(request, "param", OldCore))
