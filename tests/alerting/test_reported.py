"""Which reports of nodes are still to be compared with alerts."""

from datetime import UTC, datetime, timedelta

from alerting.reported import REPORTED, ReportedNodes
from muster.contracts.nodes import NodeReport, ProblemKind
from muster.records import Received

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def report(node: str, revision: int, problem: str | None = None) -> NodeReport:
    return NodeReport(
        node=node,
        revision=revision,
        journal="j",
        boot="b",
        at=START + timedelta(seconds=revision),
        address="10.0.0.1",
        version="1",
        cpu=8,
        memory_mb=1024,
        problem=problem,
        problem_kind=ProblemKind.DISK if problem else None,
    )


def read(nodes: ReportedNodes, name: str, model: NodeReport | None) -> None:
    nodes.on_record(Received(REPORTED, 0, 0, name, {}, None), model)


def test_a_report_that_comes_during_a_look_is_looked_at_next() -> None:
    nodes = ReportedNodes()
    read(nodes, "n1", report("n1", 1, "No room."))
    read(nodes, "n2", report("n2", 1))
    seen = nodes.unseen(10)
    assert set(seen) == {"n1", "n2"}
    read(nodes, "n1", healthy := report("n1", 2))
    assert nodes.see(seen)
    assert nodes.unseen(10) == {"n1": healthy}
    assert not nodes.see(nodes.unseen(10))
    read(nodes, "n2", report("n2", 2))  # as healthy as before
    assert nodes.unseen(10) == {}


def test_what_is_not_seen_yet_stays_and_is_looked_at_in_parts() -> None:
    nodes = ReportedNodes()
    for name in ("n1", "n2", "n3"):
        read(nodes, name, report(name, 1))
    read(nodes, "n3", None)
    assert set(nodes.unseen(2)) == {"n1", "n2"} == set(nodes.unseen(2))  # a look that failed
    assert nodes.see(nodes.unseen(2))
    assert nodes.unseen(2) == {"n3": None}
    nodes.see(nodes.unseen(2))
    nodes.doubt()
    assert set(nodes.unseen(10)) == {"n1", "n2", "n3"}
