"""docs/simulator.md: its example is what comes out, and it has every field and every code."""

import re
from pathlib import Path

import pytest
from scheduler.domain.core import explain
from scheduler.domain.core.config import Finding
from scheduler.domain.formats import cluster_file, events, gangs
from scheduler.domain.formats.cluster_change import read_change
from scheduler.domain.formats.cluster_file import read_cluster
from scheduler.domain.formats.decisions import decision_line
from scheduler.domain.formats.events import read_events
from scheduler.domain.simulation.comparison import compare
from scheduler.domain.simulation.comparison_text import comparison_data, comparison_text
from scheduler.domain.simulation.run import Simulation
from scheduler.domain.simulation.side_by_side import SideBySide
from scheduler.domain.simulation.summary import summary, summary_text

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "simulator.md").read_text()
EXAMPLE = ROOT / "examples" / "simulate"
CORE = ROOT / "services" / "scheduler" / "src" / "scheduler" / "domain" / "core"


@pytest.mark.parametrize(
    "file", ["cluster.yaml", "events.jsonl", "decisions.jsonl", "what-if.yaml"]
)
def test_the_page_shows_the_files_of_the_example(file: str) -> None:
    assert (EXAMPLE / file).read_text() in PAGE


def test_the_example_comes_out_as_the_page_says() -> None:
    cluster = read_cluster((EXAMPLE / "cluster.yaml").read_bytes())
    simulation = Simulation(cluster.config, lambda finding: pytest.fail(str(finding)))
    with (EXAMPLE / "events.jsonl").open("rb") as lines:
        said = [decision_line(*each) + "\n" for each in simulation.run(read_events(lines))]
    assert "".join(said) == (EXAMPLE / "decisions.jsonl").read_text()
    assert simulation.warnings == ()
    assert summary_text(summary(simulation.tally, simulation.runs)) in PAGE


def test_the_what_if_comes_out_as_the_page_says() -> None:
    cluster = read_cluster((EXAMPLE / "cluster.yaml").read_bytes()).config
    file = read_change((EXAMPLE / "what-if.yaml").read_bytes(), cluster)

    def warn(finding: Finding) -> None:
        pytest.fail(str(finding))

    before, after = Simulation(cluster, warn), Simulation(file.changed.config, warn)
    pair = SideBySide(before, after, file.change, warn)
    with (EXAMPLE / "events.jsonl").open("rb") as lines:
        assert list(pair.run(read_events(lines)))
    text = comparison_text(compare(pair))
    assert text in PAGE
    row = comparison_data(compare(pair))["all"]
    assert isinstance(row, dict)
    assert {field for field in row if f"`{field}`" not in PAGE} == set()


def test_the_page_has_every_field() -> None:
    tables = [
        *(getattr(cluster_file, name) for name in ("_FILE", "_CELL_TYPE", "_CELL", "_NODE")),
        *(getattr(cluster_file, name) for name in ("_VIRTUAL_CLUSTER", "_QUOTA", "_POLICY")),
        *(gangs.GANG, gangs.PODS, gangs.PLACE, gangs.CELL),
        *(known for known, _ in events._EVENTS.values()),
    ]
    told = set(re.findall(r"[A-Za-z]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert {field for known in tables for field in known} <= told
    assert {name for name in events._EVENTS if f"`{name}`" not in PAGE} == set()


def test_the_page_has_every_code() -> None:
    source = "".join(path.read_text() for path in sorted(CORE.glob("*.py")))
    codes = set(re.findall(r'Reason\(\s*"([a-z-]+)"', source))
    constants = vars(explain).items()  # of codes that are told of waiting gangs
    codes |= {code for name, code in constants if name.isupper() and isinstance(code, str)}
    assert {"health", "quota", "shape", "order", "too-large"} <= codes
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()
