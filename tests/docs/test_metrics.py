"""Queries are copied out of the pages: the names in them are those under which metrics are
exported.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alerting.metrics import AlertingMetrics
from launcher.metrics import LauncherMetrics
from muster.metrics import PlumbingMetrics
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase
from rest.metrics import RestMetrics
from runtime_agent.fence import FenceMetrics
from runtime_agent.metrics import AgentMetrics
from runtime_agent.usage_metrics import UsageMetrics
from scheduler.metrics import SchedulerMetrics

ROOT = Path(__file__).parents[2]
PAGES: dict[str, Callable[[CollectorRegistry], object]] = {
    "services/alerting": AlertingMetrics,
    "services/launcher": LauncherMetrics,
    "services/rest": RestMetrics,
    "services/runtime-agent": lambda registry: (
        UsageMetrics(registry, "node", 60.0, shows_jobs=True),
        AgentMetrics(registry),
    )[-1],
    "services/scheduler": SchedulerMetrics,
    "shared": PlumbingMetrics,
}
"""The folders whose pages explain the metrics of each."""

OF_A_HISTOGRAM = ("_bucket", "_count", "_sum")
NO_METRICS = {
    "muster_up", "muster_on", "muster_kafka_password", "muster_secrets_keys",
    "muster_secrets_public_key", "muster_admin_password", "muster_cluster_key",
    "muster_service_key", "muster_webhook_key", "muster_database_url", "muster_metrics_token",
    "muster_alertmanager_token",
    "muster_smtp_password",
}  # fmt: skip
"""Names in pages and tests that look like a metric's: fixtures, the files of secrets."""


def exported(make: Callable[[CollectorRegistry], object]) -> Iterator[str]:
    """The names under which they are scraped."""
    registry = CollectorRegistry()
    make(registry)
    for family in registry.collect():
        yield f"{family.name}_total" if family.type == "counter" else family.name


def names_in(path: Path) -> set[str]:
    """Whatever might be the name of a metric."""
    return set(re.findall(r"\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+\b", path.read_text()))


@pytest.mark.parametrize("folder", PAGES)
def test_a_services_pages_name_all_its_metrics(folder: str) -> None:
    pages = [ROOT / folder / "README.md", *(ROOT / folder / "docs").glob("*.md")]
    named = set[str]().union(*(names_in(page) for page in pages))
    assert not set(exported(PAGES[folder])) - named


def labels(make: Callable[[CollectorRegistry], object]) -> dict[str, set[str]]:
    """The labels of each metric, by the name under which it is scraped."""
    made = vars(make(CollectorRegistry())).values()
    metrics = [each for each in made if isinstance(each, MetricWrapperBase)]
    return {
        f"{name}_total" if isinstance(each, Counter) else name: set(each._labelnames)
        for each in metrics
        for name in (each.describe()[0].name,)
    }


def test_pages_show_metrics_with_their_labels() -> None:
    known = {name: each for make in PAGES.values() for name, each in labels(make).items()}
    texts = [path for folder in ("docs", *PAGES) for path in (ROOT / folder).rglob("*.md")]
    shown = {
        (path.relative_to(ROOT).as_posix(), name, tuple(sorted(given.split(","))))
        for path in texts
        for name, given in re.findall(r"`(muster_\w+)\{([a-z_,]+)\}`", path.read_text())
    }
    assert len(shown) > 30
    assert not {each for each in shown if set(each[2]) != known[each[1]]}


def test_no_page_and_no_test_names_a_metric_that_is_not_exported() -> None:
    known = {name for make in (*PAGES.values(), FenceMetrics) for name in exported(make)}
    known |= NO_METRICS
    known |= {name + more for name in known for more in OF_A_HISTOGRAM}
    folders = (ROOT / name for name in ("docs", "services", "shared", "cli", "deploy", "tests"))
    texts = [path for folder in folders for path in folder.rglob("*.md")]
    texts += [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "tests").rglob("*.py")]
    unknown = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in texts
        if path != Path(__file__)
        for name in names_in(path)
        if name.startswith("muster_") and name not in known
    }
    assert not unknown
