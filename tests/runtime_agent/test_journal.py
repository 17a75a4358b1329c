"""The journal: whole steps or none, revisions that never come twice, and what may be forgotten."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from muster.channels import Outgoing
from muster.contracts.pods import PodRun, RoleShape
from muster.exchange import Exchange, next_revision
from muster.subject import digest_of
from runtime_agent.domain.pods import Phase, Pod, Stopping
from runtime_agent.store import (
    LOG_BYTES,
    SPARE_BYTES,
    Entry,
    Journal,
    Partitions,
    Position,
    new_subject,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
RUN = PodRun(
    user="u", user_number=1, job_name="u~j", virtual_cluster="default", role="w", index=0,
    job_attempt=0, task_attempt=0, command="true",
    cpu=1, memory_mb=1, gpus=(1, 2), ports={"a": (20000,)},
    roles=(RoleShape(name="w", instances=1, gpus=0, cpu=1, memory_mb=1, min_failed_instances=1,
                     min_succeeded_instances=-1),),
    peers=(),
)  # fmt: skip


def an_entry(name: str, phase: Phase = Phase.RUNNING) -> Entry:
    pod = Pod(name, "job", "job-0", phase, RUN, Stopping("stopped", 2.5), True, NOW)
    subject = replace(
        new_subject(pod, "id-1"),
        exchange=next_revision(Exchange(seen=3), NOW),
        topic="pod-started",
        message='{"pod":"x"}',
        digest=digest_of('{"pod":"x"}'),
        traceparent="00-a-b-01",
    )
    return Entry(pod, subject, NOW)


def with_exchange(entry: Entry, exchange: Exchange) -> Entry:
    return replace(entry, subject=replace(entry.subject, exchange=exchange))


def a_letter(ident: str) -> Outgoing:
    return Outgoing("t", "k", b"v", ident, 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_a_journal_gives_back_what_it_took(path: Path) -> None:
    journal = Journal(path, "id-1")
    journal.save([an_entry("p")], [Position("t", 2, "bus", 17)], [a_letter("l")])
    journal.close()
    again = Journal(path, "id-2")
    assert (again.id, again.is_new) == ("id-1", False)
    assert again.load(["p", "unknown"]) == {"p": an_entry("p")}
    assert again.active() == [an_entry("p")]
    assert again.positions() == [Position("t", 2, "bus", 17)]
    assert again.letters(10) == [a_letter("l")]
    again.close()


def test_only_pods_that_have_not_ended_are_live(path: Path) -> None:
    journal = Journal(path, "id")
    journal.save([an_entry("accepted", Phase.ACCEPTED), an_entry("running")])
    journal.save([an_entry("ended", Phase.ENDED)])
    assert journal.live() == {"accepted", "running"}
    journal.close()


def test_room_for_a_full_disk_is_kept_also_while_no_agent_runs(path: Path) -> None:
    def taken() -> int:
        return sum(file.stat().st_blocks * 512 for file in path.parent.iterdir())

    journal = Journal(path, "id")
    assert journal.keep_reserve() == SPARE_BYTES
    before = taken()
    assert before > LOG_BYTES + SPARE_BYTES
    for number in range(500):
        journal.save([an_entry(f"p-{number}")])
    assert taken() == before
    assert journal.keep_reserve() == SPARE_BYTES
    journal.close()
    assert taken() > LOG_BYTES + SPARE_BYTES
    journal = Journal(path, "id")
    assert len(journal.active()) == 500
    journal.close()


def test_report_revisions_never_come_twice_also_after_a_crash(path: Path) -> None:
    taken: list[int] = []
    for _ in range(3):
        journal = Journal(path, "id")
        following = journal.next_report
        taken += [journal.take_report() for _ in range(5)]
        assert following == taken[-5]
        journal.close()
    assert taken == sorted(set(taken))


def test_a_step_that_fails_changes_nothing(path: Path) -> None:
    journal = Journal(path, "id")
    entry = an_entry("b")
    broken = replace(entry, subject=replace(entry.subject, topic=object()))  # type: ignore[arg-type]
    with pytest.raises(sqlite3.Error):
        journal.save([an_entry("a"), broken], [Position("t", 0, "bus", 1)])
    assert (journal.active(), journal.positions()) == ([], [])
    journal.close()


def test_only_ended_pods_without_open_messages_are_forgotten_and_only_in_time(path: Path) -> None:
    journal = Journal(path, "id")
    silent = with_exchange(an_entry("silent", Phase.ENDED), Exchange(revision=2, acknowledged=2))
    fresh = replace(
        silent, pod=replace(silent.pod, pod="fresh"), changed_at=NOW + timedelta(days=7)
    )
    journal.save([an_entry("lives"), an_entry("unacknowledged", Phase.ENDED), silent, fresh])
    assert journal.drop_ended(NOW + timedelta(days=1), 10) == ["silent"]
    assert journal.load(["silent", "fresh", "lives", "unacknowledged"]).keys() == {
        "fresh", "lives", "unacknowledged",
    }  # fmt: skip
    journal.close()


def test_a_journal_of_another_version_is_refused_with_a_reason(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ValueError, match="version 99"):
        Journal(path, "id")


def test_reports_go_on_above_what_an_older_journal_may_have_missed(path: Path) -> None:
    journal = Journal(path, "id", report_floor=5_000)
    assert journal.take_report() == 5_001
    journal.close()
    journal = Journal(path, "id", report_floor=10)
    assert journal.take_report() > 5_001
    journal.close()


def test_the_partitions_of_before_are_known_after_a_restart(path: Path) -> None:
    kept = {"pod-requested": Partitions("bus", 6, {3: 99.5}), "other": Partitions("bus", 1)}
    journal = Journal(path, "id")
    journal.keep_partitions(kept)
    journal.close()
    journal = Journal(path, "id")
    assert journal.partitions() == kept
    journal.close()


def test_a_journal_that_begins_anew_knows_nothing_and_keeps_its_room(path: Path) -> None:
    journal = Journal(path, "id-1", report_floor=5_000)
    journal.adopt("machine a")
    assert journal.keep_reserve() == SPARE_BYTES
    journal.take_report()
    journal.save([an_entry("p")], [Position("t", 2, "bus", 17)], [a_letter("l")], {"m": 9})
    journal.keep_partitions({"t": Partitions("bus", 6, {3: 99.5})})
    journal.begin_anew("id-2", "machine b")
    assert journal.take_report() > 5_001
    assert journal.keep_reserve() == SPARE_BYTES
    journal.close()
    journal = Journal(path, "unused")
    assert (journal.id, journal.machine, journal.is_new) == ("id-2", "machine b", False)
    assert (journal.load(["p"]), journal.active(), journal.positions()) == ({}, [], [])
    assert (journal.letters(10), journal.mark("m"), journal.partitions()) == ([], 0, {})
    journal.close()
