"""One trace shows the whole way of a job, from the request through every topic to the pod's end."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from whole_muster import Muster, a_job, eventually

pytestmark = pytest.mark.system

WAY = (
    "job-submitted publish",
    "job-submitted process",
    "gang-requested publish",
    "gang-requested process",
    "placement-decided publish",
    "placement-decided process",
    "pod-requested publish",
    "pod-succeeded process",
    "job-updated publish",
    "job-updated process",
)


def way(spans: Sequence[ReadableSpan]) -> list[str]:
    """What is missing of the way of a job in the trace that holds its submission."""
    (first,) = [s for s in spans if s.name == "job-submitted publish"][:1] or [None]
    if first is None or first.context is None:
        return list(WAY)
    mine = [s for s in spans if s.context and s.context.trace_id == first.context.trace_id]
    names = {s.name for s in mine}
    return [name for name in WAY if name not in names]


async def test_one_trace_shows_the_whole_way_of_a_job(
    spans: InMemorySpanExporter, muster: Muster
) -> None:
    name = await muster.submit(a_job("traced", "true", gpus=1))
    assert await muster.end_of(name) == "SUCCEEDED"

    async def missing() -> list[str]:
        return way(spans.get_finished_spans())

    async def mine() -> list[ReadableSpan]:
        found = spans.get_finished_spans()
        (trace_id, *_) = (s.context.trace_id for s in found if s.name == "job-submitted publish")  # type: ignore[union-attr]
        return [s for s in found if s.context and s.context.trace_id == trace_id]

    async def hanging_on_nothing() -> list[str]:
        found = await mine()
        ids = {s.context.span_id for s in found if s.context}
        return [s.name for s in found if s.parent and s.parent.span_id not in ids]

    await eventually(missing, lambda names: names == [])
    # Later, for a child ends before its parent.
    await eventually(hanging_on_nothing, lambda names: names == [])
    roots = [s for s in await mine() if s.parent is None]
    assert [s.name for s in roots] == ["POST /api/v2/jobs"]
