"""Fixtures of the tests that run all five services."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import whole_muster
from cli.embedded.broker import EmbeddedBroker
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from whole_muster import Muster, a_muster


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """With `--backend kubernetes` the agent's node is one of a real control plane."""
    if request.config.getoption("--backend") == "processes":
        yield
        return
    import kube_muster  # only here: it needs programs that `make kube` builds

    plane = request.getfixturevalue("kube_plane")
    kube_muster.grant(plane)
    with kube_muster.a_kubelet(plane, tmp_path / "kubelet") as kubelet:
        whole_muster.AGENT_BACKEND |= kube_muster.agent_settings(plane, kubelet, tmp_path)
        yield
        whole_muster.AGENT_BACKEND.clear()


@pytest.fixture
async def muster(
    database_url: str, fresh_broker: EmbeddedBroker, tmp_path: Path
) -> AsyncIterator[Muster]:
    """A whole Muster with one node that pretends to have 8 GPUs."""
    async with a_muster(database_url, fresh_broker.bootstrap, tmp_path) as running_muster:
        yield running_muster


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Every span that ends in this process from here on."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter
