"""docs/traces.md: its example is what comes out, its mappings are mappings, and it has every field
and every limit.
"""

import re
from pathlib import Path

import pytest
import sample_trace
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.events import read_events
from scheduler.domain.formats.gangs import MAX_PODS
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.trace import cells, csv_rows, gangs, mapping_file
from scheduler.domain.trace.csv_rows import Rows
from scheduler.domain.trace.gangs import Imported, import_rows
from scheduler.domain.trace.mapping_file import read_mapping

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "traces.md").read_text()
EXAMPLE = ROOT / "examples" / "trace"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,v1,16,128,2,COMPLETED,2020-06-01 00:00:10,2020-06-01 00:00:12,2020-06-01 00:01:12,60,2
2,u1,v1,0,4,1,COMPLETED,2020-06-02 00:00:10,2020-06-02 00:00:12,2020-06-02 00:01:12,60,2
3,u2,v1,8,64,1,CANCELLED,2020-06-03 00:00:10,None,2020-06-03 00:00:12,0,2
4,u2,v1,8,64,1,COMPLETED,2020-05-03 00:00:10,2020-05-03 00:00:11,2020-05-03 00:00:12,1,1
"""
PAI = """\
j1,ps,1.0,Terminated,100.0,160.0,600.0,29.296875,,
j1,worker,2.0,Terminated,105.0,190.0,400.0,29.296875,50.0,T4
j2,worker,2.0,Waiting,,,400.0,29.296875,50.0,
"""


def imported(mapping: str, lines: str) -> Imported:
    """What comes of a list."""
    read = read_mapping(mapping.encode())
    rows = Rows(lines.encode().splitlines(keepends=True), read.columns)
    assert read.absent(rows.header) == []
    return import_rows(rows, read)


def test_the_page_shows_the_mapping_of_the_example() -> None:
    assert EXAMPLES[0] == (EXAMPLE / "alibaba-gpu-2023.yaml").read_text()


def test_the_sample_is_what_its_program_makes() -> None:
    made = "".join(line + "\n" for line in sample_trace.lines())
    assert (EXAMPLE / "sample.csv").read_text() == made


def test_the_example_comes_out_as_the_page_says() -> None:
    came = imported(EXAMPLES[0], (EXAMPLE / "sample.csv").read_text())
    assert f"examples/trace/sample.csv: {came.summary()}\n" in PAGE
    assert list(read_events(line.encode() for line in came.lines()))


def test_the_cluster_of_the_example_is_used_as_much_as_the_page_says() -> None:
    config = read_cluster((EXAMPLE / "cluster.yaml").read_bytes()).config
    simulation = Simulation(config, lambda finding: pytest.fail(str(finding)))
    assert simulation.warnings == ()
    came = imported(EXAMPLES[0], (EXAMPLE / "sample.csv").read_text())
    demand = 0
    for gang in came.gangs:
        demand += gang.run_ms * sum(kind.gpus * count for (_, kind), count in gang.pods.items())
    gpus = sum(free.bit_count() for _, _, free in simulation.core.cells.free())
    assert f"would use the {gpus} GPUs" in PAGE
    used = demand / 1000 / gpus / sample_trace.DAY_S
    assert f"to {used:.0%}".replace("%", " %") in PAGE


def test_lists_of_jobs_with_several_pods_come_out() -> None:
    came = imported(EXAMPLES[1], HELIOS)
    [gang] = came.gangs
    [((_, kind), count)] = gang.pods.items()
    assert (gang.id, count, kind.gpus, kind.cpu, gang.run_ms) == ("1", 2, 8, 64, 60_000)
    assert came.left_out == {"keep": 1, "missing run": 1, "time": 1}
    assert next(came.lines()).startswith('{"at":10,')


def test_lists_of_tasks_come_out() -> None:
    came = imported(EXAMPLES[2], PAI)
    [gang] = came.gangs
    wanted = [
        (name, count, kind.gpus, kind.gpu_types, kind.cpu, kind.memory_mb)
        for (name, kind), count in gang.pods.items()
    ]
    assert wanted == [("ps", 1, 0, (), 6, 30_000), ("worker", 2, 1, ("T4",), 4, 30_000)]
    assert (gang.run_ms, came.left_out) == (85_000, {"missing run": 1})


def test_the_page_has_every_field() -> None:
    names = ("_FILE", "_KEEP", "_TIME", "_GANG", "_TEXT", "_RUN", "_DURATION", "_PODS", "_GPUS")
    known = [*(getattr(mapping_file, name) for name in names), mapping_file._TYPES]
    told = set(re.findall(r"[A-Za-z]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert {field for fields in known for field in fields} <= told


def test_the_page_has_every_limit() -> None:
    for limit in (gangs.MAX_ROWS, csv_rows.MAX_ROW_BYTES, csv_rows.MAX_COLUMNS, MAX_PODS):
        assert f"| {limit:,}" in PAGE
    assert f"| {cells.MAX_FIGURE} characters" in PAGE
    assert cells.MAX_TIME_S == 10**12
    assert "10^12 seconds" in PAGE
    assert mapping_file.MAPPING_FILE.max_bytes == 1024 * 1024
    assert "at most 1 MiB" in PAGE
    assert f"up to {mapping_file.MAX_FACTOR}" in PAGE
