"""Two machines with one node name: how it is found, and what it keeps from happening."""

from collections.abc import Sequence
from typing import Any

import pytest
from muster.contracts.gangs import PodRelease
from muster.contracts.nodes import PodOnNode
from scheduler.domain.clashes import Clash, Clashes
from scheduler.domain.core.model import Deferred, Placed

Kit = Any

QUIET_S = 180.0


def received(kit: Kit, journals: Sequence[str], every_s: float = 30.0) -> Clashes:
    """Reports of one name, by the journals that they are from; each journal counts its own."""
    clashes, revisions = Clashes(QUIET_S), dict.fromkeys(journals, 0)
    for number, journal in enumerate(journals):
        revisions[journal] += 1
        clashes.report(a_report(kit, journal, revisions[journal]), number * every_s)
    return clashes


def a_report(kit: Kit, journal: str, revision: int, **more: Any) -> Any:
    return kit.report(
        "n0", gpus=2, revision=revision, journal=journal, address=f"address-{journal}", **more
    )


@pytest.mark.parametrize(
    ("journals", "is_clash"),
    [
        ("", False),
        ("aaaa", False),
        ("aabb", False),  # its agent has lost its journal
        ("aabbaa", False),  # and has found it again
        ("abcdefghijkl", False),  # and loses it at each start
        ("abab", True),
        ("aaabbbab", True),
        ("abcabc", True),
        ("abacacbc", True),
    ],
)
def test_a_name_clashes_where_two_journals_report_again_after_one_another(
    kit: Kit, journals: str, is_clash: bool
) -> None:
    found = received(kit, journals).look("n0", len(journals) * 30.0)
    assert (found is not None) == is_clash
    if journals == "abab":
        assert found == Clash(("a", "b"), ("address-a", "address-b"), 120.0)


def test_a_clash_is_over_when_one_journal_has_not_reported_for_a_while(kit: Kit) -> None:
    clashes = received(kit, "abab")
    assert clashes.look("n0", 60.0 + QUIET_S - 1) is not None
    assert clashes.look("n0", 60.0 + QUIET_S) is None


def test_a_journal_that_comes_back_after_long_is_no_clash(kit: Kit) -> None:
    assert received(kit, "abab", every_s=QUIET_S).look("n0", 3 * QUIET_S) is None


def test_reports_that_are_read_again_are_no_news(kit: Kit) -> None:
    """A reader that is built anew begins at the topic's start."""
    clashes = Clashes(QUIET_S)
    for _ in range(3):
        for journal, revision in (("a", 1), ("a", 2), ("b", 1), ("b", 2)):
            clashes.report(a_report(kit, journal, revision), 0.0)
    assert clashes.look("n0", 1.0) is None


CLASH = Clash(("a", "b"), ("address-a", "address-b"), 0.0)


def placed(kit: Kit, journal: str = "a") -> Any:
    """A node with a pod on one of its GPUs, whose placement names the journal."""
    state = kit.state(a_report(kit, journal, 1))
    state.request(kit.gang("g", *kit.pods("g", 1, gpus=1)), 0.0, 0.0)
    (found,) = kit.decide(state, 0.0)
    assert isinstance(found, Placed)
    return state


def runs(*pods: str) -> tuple[PodOnNode, ...]:
    return tuple(PodOnNode(pod=pod, gpus=(number,)) for number, pod in enumerate(pods))


def test_nothing_is_placed_where_names_clash_and_who_waits_is_told(kit: Kit) -> None:
    state = placed(kit)
    state.ledger.clash("n0", CLASH, 1.0)
    state.request(kit.gang("h", *kit.pods("h", 1, gpus=1), age=1), 1.0, 1.0)
    (waits,) = [d for d in kit.decide(state, 1.0) if isinstance(d, Deferred)]
    assert (waits.reason.code, "n0" in waits.reason.text) == ("health", True)
    trouble = state.ledger.nodes["n0"].trouble
    assert trouble == "two machines report under its name: address-a and address-b"
    assert state.ledger.hold_of("g-w-0").is_wanted
    state.ledger.clash("n0", None, 2.0)
    assert [d.gang for d in kit.decide(state, 2.0) if isinstance(d, Placed)] == ["h"]


@pytest.mark.parametrize("journal", ["a", "b"])
def test_the_node_is_the_machine_that_placements_name(kit: Kit, journal: str) -> None:
    """Whatever is reported and heard last."""
    state = placed(kit, journal)
    ledger = state.ledger
    ledger.clash("n0", CLASH, 1.0)
    for revision in range(2, 5):
        for each in "ab":
            state.report(a_report(kit, each, revision, cpu=8 if each == "a" else 9), 1.0)
            ledger.receive("n0", each, 1.0)
            assert ledger.nodes["n0"].report.journal == journal
    assert ledger.nodes["n0"].report.revision == 4


def test_a_clash_that_is_found_late_gives_the_node_back_to_its_placements(kit: Kit) -> None:
    state = placed(kit)
    state.report(a_report(kit, "b", 2), 1.0)
    assert state.ledger.nodes["n0"].report.journal == "b"
    state.ledger.clash("n0", CLASH, 1.0)
    state.report(a_report(kit, "a", 3), 1.0)
    assert state.ledger.nodes["n0"].report.journal == "a"


def test_in_a_clash_no_pod_is_lost_that_the_other_machine_does_not_run(kit: Kit) -> None:
    state = placed(kit)
    state.report(a_report(kit, "b", 2), 1.0)
    assert state.ledger.forgetful == {"n0"}
    state.ledger.clash("n0", CLASH, 1.0)
    assert state.ledger.forgetful == set()
    assert state.lose_forgotten("n0", 1.0) == []
    state.ledger.clash("n0", None, 2.0)
    assert state.ledger.forgetful == {"n0"}


def test_what_the_other_machine_does_not_run_is_not_free(kit: Kit) -> None:
    state = placed(kit)
    state.ledger.clash("n0", CLASH, 1.0)
    state.report(a_report(kit, "a", 2, pods=runs("g-w-0")), 1.0)
    end = PodRelease(pod="g-w-0", journal="a", report_revision=3)
    state.request(kit.gang("g", released=(end,)), 1.0, 1.0)
    state.report(a_report(kit, "b", 9), 1.0)
    assert state.ledger.hold_of("g-w-0") is not None
    state.report(a_report(kit, "a", 3), 1.0)
    assert state.ledger.hold_of("g-w-0") is None


def test_a_pod_that_the_other_machine_runs_is_placed_nowhere(kit: Kit) -> None:
    """Nor is it adopted, as long as the name clashes."""
    state = placed(kit)
    state.report(kit.report("n1", gpus=2), 0.0)
    state.ledger.receive("n1", "", 0.0)
    state.ledger.clash("n0", CLASH, 1.0)
    state.report(a_report(kit, "a", 2, pods=runs("g-w-0")), 1.0)
    state.report(a_report(kit, "b", 2, pods=runs("x-w-0", "x-w-1")), 1.0)
    state.request(kit.gang("x", *kit.pods("x", 1, gpus=1)), 1.0, 1.0)
    kit.decide(state, 1.0)
    reason = state.reason_of("x")
    assert reason is not None
    assert (reason.code, "two machines" in reason.text) == ("still-running", True)
    state.ledger.clash("n0", None, 2.0)
    state.report(a_report(kit, "a", 3, pods=runs("g-w-0")), 2.0)
    (found,) = [d for d in kit.decide(state, 2.0) if isinstance(d, Placed)]
    assert found.gang == "x"
