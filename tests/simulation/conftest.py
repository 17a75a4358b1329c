"""Suites that run on both cores, as long as there are two."""

import core_door
import pytest
from scheduler.domain.core.old_core import OldCore
from scheduler.domain.newcore.cycle import Core

BOTH = {"test_hived_faults", "test_hived_requests", "test_hived_scheduling"}

DIFFERENT = {
    "test_c1_chains_share_a_leaf_type_and_a_machine_is_in_several_chains": "pods of one kind stay"
    " in one chain: such a gang waits longer",
    "test_s1_more_pods_of_a_job_come_near_the_first": "groups are missing: nobody waits longer",
    "test_s2_a_gang_spans_chains_and_mixes_pinned_and_other_cells": "as with c1",
    "test_s6_nobody_is_downgraded_where_that_would_not_help": "another reason: nobody waits longer",
    "test_s7_a_reservation_ends_when_its_place_turns_bad_or_it_is_withdrawn": "nothing is published"
    " of a gang that is gone: nobody waits longer",
}
"""Tests that the core with one state does not pass yet, with who waits longer for it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of these suites run once for each core."""
    if (
        metafunc.module.__name__.rpartition(".")[2] in BOTH
        and "core_class" in metafunc.fixturenames
    ):
        cores = [OldCore] if metafunc.function.__name__ in DIFFERENT else [OldCore, Core]
        metafunc.parametrize("core_class", cores, indirect=True)


@pytest.fixture(autouse=True)
def core_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core of every `CoreDoor`."""
    monkeypatch.setattr(core_door, "CORE", getattr(request, "param", OldCore))
