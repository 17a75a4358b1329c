"""`muster export`: the Scheduler's record becomes the two files that `muster simulate` reads."""

import gzip
import json
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from rest_double import Rest, muster

CLUSTER, EVENTS = '{"cellTypes":{}}\n', '{"at":1,"event":"cycle"}\n{"at":2,"event":"cycle"}\n'
PATH = "/api/v2/cluster/export"


def serve(rest: Rest, query: str) -> None:
    rest.answers[f"GET {PATH}?{query}"] = (200, "application/x-ndjson", CLUSTER + EVENTS)


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz"])
def test_the_first_line_is_the_cluster_and_the_others_are_the_events(
    rest: Rest, tmp_path: Path, name: str
) -> None:
    serve(rest, "since=2026-01-31T13%3A00%3A00Z&until=1769868000")
    cluster, events = tmp_path / "cluster.json", tmp_path / name
    moments = ("--since", "2026-01-31T13:00:00Z", "--until", "1769868000")
    ran = muster(rest, tmp_path, "export", str(cluster), str(events), *moments)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert cluster.read_text() == CLUSTER
    content = events.read_bytes()
    assert (gzip.decompress(content) if name.endswith(".gz") else content).decode() == EVENTS


def test_so_long_ago_is_a_time(rest: Rest, tmp_path: Path) -> None:
    before = time.time()
    files = (str(tmp_path / "c"), str(tmp_path / "e"))
    ran = muster(rest, tmp_path, "export", *files, "--since", "2h", "--until", "30m")
    assert ran.code == 4  # the double has no answer to that
    query = parse_qs(urlsplit(rest.asked[-1][1]).query)
    since, until = (float(query[name][0]) for name in ("since", "until"))
    assert before - 7200 <= since <= time.time() - 7200
    assert before - 1800 <= until <= time.time() - 1800


def test_a_refusal_of_the_server_is_shown_and_leaves_no_file(rest: Rest, tmp_path: Path) -> None:
    refusal = {"code": "NoRecordError", "message": "There is no record of that time."}
    rest.answers[f"GET {PATH}?since=7"] = (404, "application/json", json.dumps(refusal))
    cluster = tmp_path / "cluster.json"
    ran = muster(rest, tmp_path, "export", str(cluster), str(tmp_path / "e"), "--since", "7")
    assert ran.code == 4
    assert "no record of that time" in ran.err
    assert not cluster.exists()


def test_an_export_that_is_cut_off_is_a_failure(rest: Rest, tmp_path: Path) -> None:
    serve(rest, "since=7")
    rest.headers[f"GET {PATH}?since=7"] = {"Content-Length": "1000"}
    files = (str(tmp_path / "c"), str(tmp_path / "e"))
    ran = muster(rest, tmp_path, "export", *files, "--since", "7")
    assert ran.code == 9
    assert "not whole" in ran.err


def test_the_cluster_and_the_events_need_two_files(rest: Rest, tmp_path: Path) -> None:
    file = tmp_path / "c"
    ran = muster(rest, tmp_path, "export", str(file), str(tmp_path / "." / "c"), "--since", "7")
    assert (ran.code, file.exists()) == (2, False)
    assert "CLUSTER and EVENTS are the same file" in ran.err


@pytest.mark.parametrize("files", [("gone/c", "e"), ("c", "gone/e")])
def test_a_file_that_cannot_be_written_is_not_taken_for_the_server(
    rest: Rest, tmp_path: Path, files: tuple[str, str]
) -> None:
    serve(rest, "since=7")
    paths = [str(tmp_path / name) for name in files]
    ran = muster(rest, tmp_path, "export", *paths, "--since", "7")
    assert ran.code == 9
    assert "can't be written: No such file or directory" in ran.err
    assert "does not answer" not in ran.err
