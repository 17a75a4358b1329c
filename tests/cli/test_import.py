"""`muster import`: the Scheduler's program behind a command, as people and pipes see it."""

import gzip
import json
from pathlib import Path

import pytest
from as_program import muster, unread_muster

EXAMPLE = Path(__file__).parents[2] / "examples" / "trace"
MAPPING, SAMPLE = EXAMPLE / "alibaba-gpu-2023.yaml", EXAMPLE / "sample.csv"
CLUSTER = EXAMPLE / "cluster.yaml"


@pytest.mark.slow
def test_the_example_is_imported_and_simulated() -> None:
    imported = muster("import", MAPPING, SAMPLE)
    shown = imported.stderr.decode()
    assert imported.returncode == 0
    assert shown.startswith(f"{SAMPLE}: 2,000 rows: ")
    events = imported.stdout.splitlines(keepends=True)
    assert f" {len(events):,} gangs " in shown
    some = b"".join(events[:400])  # all of them take a minute
    ran = muster("simulate", CLUSTER, "-", "--summary", "--json", given=some)
    assert (ran.returncode, ran.stderr) == (0, b"")
    summary = json.loads(ran.stdout)
    assert sum(each["requested"] for each in summary["groups"]) == 400
    assert sum(each["refused"] for each in summary["groups"]) == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_list_comes_from_a_pipe_and_a_mapping_packed_or_not(
    tmp_path: Path, is_packed: bool
) -> None:
    pack = gzip.compress if is_packed else bytes
    mapping, output = tmp_path / "mapping", tmp_path / "events.jsonl"
    mapping.write_bytes(pack(MAPPING.read_bytes()))
    ran = muster("import", mapping, "-", "--output", output, given=pack(SAMPLE.read_bytes()))
    assert (ran.returncode, ran.stdout) == (0, b"")
    assert ran.stderr.startswith(b"stdin: 2,000 rows: ")
    ran = muster("import", "-", SAMPLE, given=pack(MAPPING.read_bytes()))
    assert output.read_bytes() == ran.stdout


def test_all_problems_of_a_list_are_shown_by_line_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    rows = SAMPLE.read_text().splitlines()[:5]
    wrong = [rows[0], rows[1].replace(",LS,", ",XL,"), rows[2], "short", f"{rows[3]},more"]
    listed, output = tmp_path / "list.csv", tmp_path / "events.jsonl"
    listed.write_text("\n".join(wrong))
    ran = muster("import", MAPPING, listed, "--output", output)
    assert (ran.returncode, ran.stdout, output.exists()) == (2, b"", False)
    assert [line.split(": ")[:2] for line in ran.stderr.decode().splitlines()] == [
        [f"{listed}:2", "qos"],
        [f"{listed}:2", "qos"],
        [f"{listed}:4", "has 1 cells, and there are 11 columns"],
        [f"{listed}:5", "has 12 cells, and there are 11 columns"],
    ]


def test_all_problems_of_a_mapping_are_shown_by_line(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(MAPPING.read_text().replace("id: name", "idd: name"))
    ran = muster("import", mapping, SAMPLE)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.decode().splitlines() == [
        f"{mapping}:5: gang.id: is missing; add it",
        f"{mapping}:6: gang.idd: is unknown; is it `id`?",
    ]


def test_a_missing_column_is_shown_in_the_mapping(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(MAPPING.read_text().replace("gpu_milli ", "gpu_mili "))
    ran = muster("import", mapping, SAMPLE)
    assert (ran.returncode, ran.stdout) == (2, b"")
    [shown] = ran.stderr.decode().splitlines()
    where, field, what = shown.split(": ", 2)
    assert where == f"{mapping}:{mapping.read_text().partition('times:')[0].count(chr(10)) + 1}"
    assert field == "gang.pods.gpus.times"
    assert what == "names 'gpu_mili', which is no column of the list; is it 'gpu_milli'?"


def test_a_line_that_is_too_long_is_one_wrong_row() -> None:
    rows = SAMPLE.read_bytes().splitlines()
    given = b"\n".join([rows[0], b"x" * (20 << 20), rows[1], b"short"])
    ran = muster("import", MAPPING, "-", given=given)
    assert ran.returncode == 2
    assert [line.partition(": ")[0] for line in ran.stderr.decode().splitlines()] == [
        "stdin:2",
        "stdin:4",
    ]


def test_no_file_that_is_read_is_written_over(tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_bytes(SAMPLE.read_bytes())
    ran = muster("import", MAPPING, listed, "--output", tmp_path / "." / "list.csv")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"--output is a file that is read" in ran.stderr
    assert listed.read_bytes() == SAMPLE.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        (MAPPING, "no-such-file"),
        ("no-such-file", SAMPLE),
        (MAPPING, EXAMPLE),
        (MAPPING,),
        (MAPPING, SAMPLE, "--fast"),
        ("-", "-"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str | Path, ...]) -> None:
    ran = muster("import", *arguments)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_packed_list_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    packed = tmp_path / "list.csv.gz"
    packed.write_bytes(gzip.compress(SAMPLE.read_bytes())[:-20])
    ran = muster("import", MAPPING, packed)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"Traceback" not in ran.stderr
    assert packed.name in ran.stderr.decode()


def test_an_output_that_cannot_be_written_ends_with_9(tmp_path: Path) -> None:
    ran = muster("import", MAPPING, SAMPLE, "--output", tmp_path / "none" / "events.jsonl")
    assert ran.returncode == 9
    assert b"Traceback" not in ran.stderr


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    ran = unread_muster("import", MAPPING, SAMPLE)
    assert (ran.returncode, ran.stderr) == (0, b"")
