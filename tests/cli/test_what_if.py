"""`muster simulate --what-if FILE`, as people and pipes see it."""

import gzip
import json
from pathlib import Path

import pytest
from as_program import Ran, muster, started_muster

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate"
CLUSTER, EVENTS, CHANGE = (
    EXAMPLE / name for name in ("cluster.yaml", "events.jsonl", "what-if.yaml")
)


def simulate(*arguments: str | Path, given: bytes | None = None) -> Ran:
    return muster("simulate", *arguments, given=given)


def test_what_would_change_is_shown_to_people_and_to_programs() -> None:
    ran = simulate(CLUSTER, EVENTS, "--what-if", CHANGE)
    assert (ran.returncode, ran.stderr) == (0, b"")
    lines = ran.stdout.decode().splitlines()
    assert lines[:2] == [
        "This delays 2 gangs of speech by 45s on average (median 30s).",
        "This delays 1 gang of vision by 1m00s.",
    ]
    assert max(map(len, lines)) <= 80
    data = json.loads(simulate(CLUSTER, EVENTS, "--what-if", CHANGE, "--json").stdout)
    assert data["text"] == lines[:2]
    assert data["all"]["later"]["gangs"] == 3


@pytest.mark.parametrize("is_packed", [False, True])
def test_events_come_from_a_pipe(is_packed: bool) -> None:
    events = EVENTS.read_bytes()
    given = gzip.compress(events) if is_packed else events
    ran = simulate(CLUSTER, "-", "--what-if", CHANGE, given=given)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == simulate(CLUSTER, EVENTS, "--what-if", CHANGE).stdout


def test_the_change_comes_from_a_pipe() -> None:
    ran = started_muster("simulate", CLUSTER, EVENTS, "--what-if", "-", given=CHANGE.read_bytes())
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == simulate(CLUSTER, EVENTS, "--what-if", CHANGE).stdout
    ran = simulate(CLUSTER, EVENTS, "--what-if", "-", given=b"policy: {graceSecond: 3}\n")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == b"stdin:1: policy.graceSecond: is unknown; is it `graceSeconds`?\n"


def test_the_same_cluster_changes_nothing() -> None:
    ran = simulate(CLUSTER, EVENTS, "--what-if", CLUSTER)
    assert ran.returncode == 0
    assert ran.stdout.decode().startswith("Nothing changes.\n")


def test_decisions_of_the_changed_cluster_go_to_a_file(tmp_path: Path) -> None:
    alone, output = tmp_path / "alone.jsonl", tmp_path / "decisions.jsonl"
    whole = tmp_path / "cluster.yaml"
    whole.write_text(CLUSTER.read_text().replace("graceSeconds: 30", "graceSeconds: 90"))
    simulate(whole, EVENTS, "--output", alone)
    ran = simulate(CLUSTER, EVENTS, "--what-if", CHANGE, "--output", output)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert output.read_bytes() == alone.read_bytes() != (EXAMPLE / "decisions.jsonl").read_bytes()


@pytest.mark.parametrize("is_piped", [False, True])
def test_gangs_of_a_recording_run_for_as_long_as_they_did(tmp_path: Path, is_piped: bool) -> None:
    """Of three one waits: with half of the nodes the second one waits too, for all of the first."""
    cluster, events, change = (tmp_path / name for name in ("cluster", "events", "change"))
    policy = "{graceSeconds: 30, enforceGrace: false}"
    cluster.write_text(CLUSTER.read_text().replace("{graceSeconds: 30}", policy))
    pods = [{"name": "w", "count": 1, "gpus": 4}]
    gangs = [{"id": f"g{n}", "user": "u", "virtualCluster": "speech", "pods": pods} for n in "123"]
    happened = [
        *({"at": 0, "event": "gang-requested", "gang": {"priority": 0} | gang} for gang in gangs),
        *({"at": at, "event": "gang-released", "gang": f"g{n}"} for at, n in ((60, 1), (90, 3))),
        {"at": 3600, "event": "gang-released", "gang": "g2"},
    ]
    lines = "".join(f"{json.dumps(each)}\n" for each in happened)
    events.write_text(lines)
    change.write_text("virtualClusters: {speech: {cells: [{type: v100-rack/v100-node, count: 1}]}}")
    ran = simulate(
        cluster,
        "-" if is_piped else events,
        "--what-if",
        change,
        given=lines.encode() if is_piped else None,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    shown = ran.stdout.decode()
    assert shown.startswith("This delays 2 gangs of speech by 30m30s on average (median 1m00s).\n")
    assert "Run times      3 as recorded; 0 had not ended, 0 never ran\n" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_problems_of_the_change_are_shown_by_its_own_lines(tmp_path: Path) -> None:
    change = tmp_path / "change.yaml"
    change.write_text("\nvirtualClusters:\n  speech:\n    cells: [{type: v100-rack, count: 3}]\n")
    ran = simulate(CLUSTER, EVENTS, "--what-if", change)
    assert (ran.returncode, ran.stdout) == (2, b"")
    [line] = ran.stderr.decode().splitlines()
    assert line.startswith(f"{change}:4: virtualClusters.speech.cells[0].count: ")
    change.write_text("policy: {graceSeconds: -1}\n\nvirtualClusters: {speech: {cels: []}}\n")
    ran = simulate(CLUSTER, EVENTS, "--what-if", change)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert [line.partition(": ")[0] for line in ran.stderr.decode().splitlines()] == [
        f"{change}:1",
        f"{change}:3",
    ]


def test_warnings_name_the_file_that_they_are_about(tmp_path: Path) -> None:
    cluster, change = tmp_path / "cluster.yaml", tmp_path / "change.yaml"
    cluster.write_text(
        CLUSTER.read_text()
        .replace("name: rack0,", "name: rack0, pin: lab,")
        .replace("vision: {cells: [{type: v100-rack, count: 1}]}", "vision: {pins: [lab]}")
    )
    change.write_text("\nvirtualClusters:\n  vision: {cells: []}\n")
    ran = simulate(cluster, "-", "--what-if", change, given=b'{"at":0,"event":"cycle"}\n')
    assert ran.returncode == 0
    shown = sorted(line.partition(" warning: ")[0] for line in ran.stderr.decode().splitlines())
    assert shown == [f"{change}:3:", f"{cluster}:7:"]


def test_problems_of_the_events_are_shown_as_ever(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    first = EVENTS.read_text().splitlines()[0]
    events.write_text(f"{first}\n{first}\nnonsense\n")
    ran = simulate(CLUSTER, events, "--what-if", CHANGE)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert [line.partition(": ")[0] for line in ran.stderr.decode().splitlines()] == [
        f"{events}:2",
        f"{events}:3",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CLUSTER, EVENTS, "--what-if", CHANGE, "--summary"), "leave --summary out"),
        ((CLUSTER, "-", "--what-if", "-"), "only one file can be -"),
        ((CLUSTER, EVENTS, "--what-if", "no-such-file"), "no-such-file"),
        ((CLUSTER, EVENTS, "--what-if", EXAMPLE), "directory"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str | Path, ...], message: str) -> None:
    ran = simulate(*arguments)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert message in ran.stderr.decode()
    assert b"Traceback" not in ran.stderr


def test_the_change_is_not_written_over(tmp_path: Path) -> None:
    change = tmp_path / "change.yaml"
    change.write_bytes(CHANGE.read_bytes())
    ran = simulate(CLUSTER, EVENTS, "--what-if", change, "--output", change)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"--output is a file that is read" in ran.stderr
    assert change.read_bytes() == CHANGE.read_bytes()
