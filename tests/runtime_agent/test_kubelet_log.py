"""The copy of a container's output, over restarts of the agent and bounded files."""

from pathlib import Path

import pytest
from runtime_agent.kubernetes.tail import KubeletLog
from runtime_agent.logreader import LogReader, extent
from runtime_agent.supervisor.logs import BoundedFile, place_path, rotated, stream_path

MAX_BYTES = 100
LINES = [f"line {number:03d}\n" for number in range(100)]


@pytest.mark.parametrize("restarted_after", [1, 7, 40])
def test_each_line_is_copied_once_whenever_the_agent_restarts(
    tmp_path: Path, restarted_after: int
) -> None:
    source, logs = tmp_path / "main", tmp_path / "logs"
    source.mkdir()
    logs.mkdir()
    log, written = KubeletLog(source, logs, MAX_BYTES), ""
    for number, line in enumerate(LINES, 1):
        with (source / "0.log").open("a") as file:
            file.write(f"2026-01-01T00:00:00Z stdout F {line}")
        while log.step():
            pass
        written += line
        kept = extent(stream_path(logs, "stdout"))
        assert kept.end == len(written)
        assert kept.end - kept.first <= 2 * MAX_BYTES
        reader = LogReader(stream_path(logs, "stdout"), 0)
        assert reader.read() + reader.read() == written[kept.first :].encode()
        reader.close()
        if number % restarted_after == 0:
            log.close()
            log = KubeletLog(source, logs, MAX_BYTES)
    log.close()


def test_a_rotation_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "log"
    before = BoundedFile(path, MAX_BYTES)
    before.append(b"a" * MAX_BYTES)
    before.close()
    place_path(path).write_text(f"{MAX_BYTES} {path.stat().st_ino}")  # the rename is missing
    after = BoundedFile(path, MAX_BYTES)
    after.append(b"b" * 10)
    after.close()
    assert rotated(path).read_bytes() == b"a" * MAX_BYTES
    assert extent(path).end == MAX_BYTES + 10
