"""`muster simulate`: the Scheduler's program behind a command, as people and pipes see it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from as_program import Ran, muster, started_muster, unread_muster

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate"
CLUSTER, EVENTS = EXAMPLE / "cluster.yaml", EXAMPLE / "events.jsonl"
TIMEOUT_S = 60


def simulate(*arguments: str | Path, given: bytes | None = None) -> Ran:
    return muster("simulate", *arguments, given=given)


def test_decisions_of_the_example_are_printed() -> None:
    ran = started_muster("simulate", CLUSTER, EVENTS)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == (EXAMPLE / "decisions.jsonl").read_bytes()


@pytest.mark.parametrize("is_packed", [False, True])
def test_events_come_from_a_pipe_packed_or_not(is_packed: bool) -> None:
    events = EVENTS.read_bytes()
    ran = simulate(CLUSTER, "-", given=gzip.compress(events) if is_packed else events)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == (EXAMPLE / "decisions.jsonl").read_bytes()


def test_a_missing_argument_has_the_name_that_the_help_shows() -> None:
    ran = simulate(CLUSTER)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"EVENTS is missing: see muster simulate --help." in ran.stderr


def test_no_file_that_is_read_is_written_over(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(EVENTS.read_bytes())
    ran = simulate(CLUSTER, events, "--output", tmp_path / "." / "events.jsonl")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"--output is a file that is read" in ran.stderr
    assert events.read_bytes() == EVENTS.read_bytes()


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "events.jsonl.gz"
    packed.write_bytes(gzip.compress(EVENTS.read_bytes()))
    assert simulate(CLUSTER, packed).stdout == (EXAMPLE / "decisions.jsonl").read_bytes()


def test_a_summary_is_for_people_or_programs_and_decisions_go_to_a_file(tmp_path: Path) -> None:
    output = tmp_path / "decisions.jsonl"
    ran = simulate(CLUSTER, EVENTS, "--summary", "--output", output)
    assert ran.returncode == 0
    assert "VIRTUAL CLUSTER" in ran.stdout.decode()
    assert max(len(line) for line in ran.stdout.decode().splitlines()) <= 80
    assert output.read_bytes() == (EXAMPLE / "decisions.jsonl").read_bytes()
    data = json.loads(simulate(CLUSTER, EVENTS, "--summary", "--json").stdout)
    assert {each["virtualCluster"] for each in data["groups"]} == {"vision", "speech"}


def test_all_problems_are_shown_by_line_and_the_status_is_2(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text('{"at":0,"event":"node-bad","node":"n0"}\n{"at":1}\n\n{"at":2,"event":"x"}\n')
    ran = simulate(CLUSTER, events)
    shown = ran.stderr.decode().splitlines()
    assert ran.returncode == 2
    assert [line.partition(": ")[0] for line in shown] == [f"{events}:2", f"{events}:4"]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("cellTypes:\n  node: {child: gpu}\nphysicalCel: []\n")
    ran = simulate(cluster, EVENTS)
    shown = ran.stderr.decode().splitlines()
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert shown == [
        f"{cluster}:2: cellTypes.node.count: is missing; add it",
        f"{cluster}:3: physicalCel: is unknown; is it `physicalCells`?",
    ]


def test_a_cluster_that_cannot_be_honoured_is_refused_by_line(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.read_text().replace("count: 1}]}", "count: 9}]}"))
    ran = simulate(cluster, EVENTS)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert f"{cluster}:10: virtualClusters.vision.cells[0].count: " in ran.stderr.decode()
    ran = simulate("-", EVENTS, given=cluster.read_bytes())
    assert ran.stderr.startswith(b"stdin:10: virtualClusters.vision.cells[0].count: ")


FOUR_FAULTS = """\
cellTypes: {node: {child: gpu, count: 4, node: true}}
physicalCells:
  - {type: node, name: n0}
  - {type: node, name: n1, bogus: 1}
virtualClusters:
  x:
    cells:
      - {type: lorry, count: 1}
      - {type: node, count: 9}
    pins:
      - lab
"""


def test_a_cluster_with_many_faults_is_refused_once_with_all_of_them(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(FOUR_FAULTS)
    ran = simulate(cluster, EVENTS)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert [": ".join(line.split(": ")[:2]) for line in ran.stderr.decode().splitlines()] == [
        f"{cluster}:4: physicalCells[1].bogus",
        f"{cluster}:8: virtualClusters.x.cells[0].type",
        f"{cluster}:9: virtualClusters.x.cells[1].count",
        f"{cluster}:11: virtualClusters.x.pins[0]",
    ]


def test_another_cluster_with_many_faults_is_refused_once_too(tmp_path: Path) -> None:
    wrong = yaml.safe_load(FOUR_FAULTS)
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps({"at": 0, "event": "cluster-changed", "cluster": wrong}))
    ran = simulate(CLUSTER, events)
    assert ran.returncode == 2
    assert {line.split(": ")[1] for line in ran.stderr.decode().splitlines()} == {
        "cluster.physicalCells[1].bogus",
        "cluster.virtualClusters.x.cells[0].type",
        "cluster.virtualClusters.x.cells[1].count",
        "cluster.virtualClusters.x.pins[0]",
    }


def test_impossible_and_unreadable_events_are_shown_together(tmp_path: Path) -> None:
    first = EVENTS.read_text().splitlines()[0]
    events = tmp_path / "events.jsonl"
    events.write_text(f"{first}\n{first}\n{first}\nnonsense\n")
    ran = simulate(CLUSTER, events)
    shown = ran.stderr.decode().splitlines()
    assert ran.returncode == 2
    assert [line.partition(": ")[0] for line in shown] == [f"{events}:2", f"{events}:4"]


def test_a_line_that_is_too_long_is_one_wrong_line() -> None:
    ran = simulate(CLUSTER, "-", given=b'"' + b"x" * (40 << 20) + b'"\nnonsense\n')
    shown = ran.stderr.decode().splitlines()
    assert ran.returncode == 2
    assert [line.partition(": ")[0] for line in shown] == ["stdin:1", "stdin:2"]


def test_what_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("cellTypes:\n  node: {child: gpu, count: 1, node: true}\n")
    ran = simulate(cluster, "-", given=b'{"at":0,"event":"node-bad","node":"n0"}\n')
    assert (ran.returncode, ran.stdout) == (0, b"")
    assert [line.rpartition(" warning: ")[0] for line in ran.stderr.decode().splitlines()] == [
        f"{cluster}:2:",
        "stdin:1:",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-file", EVENTS),
        (CLUSTER, EVENTS, "--json"),
        (CLUSTER,),
        (CLUSTER, EVENTS, "--fast"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str | Path, ...]) -> None:
    ran = simulate(*arguments)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr
    assert b"Traceback" not in ran.stderr


def damaged(packed: bytes) -> bytes:
    """With other bytes in its middle."""
    middle = len(packed) // 2
    return packed[:middle] + bytes(255 - byte for byte in packed[middle:][:20]) + packed[-20:]


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (gzip.compress(EVENTS.read_bytes())[:-20], "is cut off"),
        (damaged(gzip.compress(EVENTS.read_bytes())), "is damaged"),
    ],
)
def test_a_packed_file_that_is_not_whole_is_an_error(
    tmp_path: Path, packed: bytes, problem: str
) -> None:
    file, recorded = tmp_path / "events.jsonl.gz", tmp_path / "cluster.yaml"
    file.write_bytes(packed)
    recorded.write_text(CLUSTER.read_text().replace("policy: {", "policy: {enforceGrace: false, "))
    for ran, name in (
        (simulate(CLUSTER, file), file),
        (simulate(CLUSTER, "-", given=packed), "stdin"),
        (simulate("-", EVENTS, given=packed), "stdin"),
        (simulate(recorded, "-", "--what-if", EXAMPLE / "what-if.yaml", given=packed), "stdin"),
    ):
        assert ran.returncode == 2
        [line] = ran.stderr.decode().splitlines()
        assert line.startswith(f"{name}: {problem}: ")


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(tmp_path: Path) -> None:
    output = tmp_path / "none" / "decisions.jsonl"
    for arguments, code, problem in (
        ((CLUSTER, "gone"), 2, "gone: can't be read: No such file or directory"),
        ((CLUSTER, EXAMPLE), 2, f"{EXAMPLE}: can't be read: Is a directory"),
        (
            (CLUSTER, EVENTS, "--output", output),
            9,
            f"{output}: can't be written: No such file or directory",
        ),
    ):
        ran = simulate(*arguments)
        assert (ran.returncode, ran.stderr.decode()) == (code, f"{problem}\n")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    ran = unread_muster("simulate", CLUSTER, EVENTS)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_files_in_the_working_directory_are_not_taken_for_modules(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("raise SystemExit(7)")
    command = [str(Path(sys.executable).parent / "muster"), "simulate", str(CLUSTER), str(EVENTS)]
    ran = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_an_order_without_priority_first_is_warned_of(tmp_path: Path) -> None:
    cluster, change = tmp_path / "cluster.yaml", tmp_path / "change.yaml"
    aged = "policy: {orderBy: [age], "
    cluster.write_text(CLUSTER.read_text().replace("policy: {", aged))
    change.write_text("policy: {orderBy: [age]}\n")
    warned = "warning: policy.orderBy: should begin with priority: "
    for ran in (simulate(cluster, EVENTS), simulate(CLUSTER, EVENTS, "--what-if", change)):
        assert ran.returncode == 0
        assert ran.stderr.decode().count(warned) == 1
