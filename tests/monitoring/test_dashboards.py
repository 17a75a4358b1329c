"""What holds of every dashboard and alert rule, without a Prometheus."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from alerting.domain import event_rules
from alerting.domain.actions import FAILURES
from alerting.metrics import AlertingMetrics
from alerting.rules import CAN_BE_OFF
from documents.monitoring import files, grafana
from documents.monitoring.dashboards import DASHBOARDS, ENDS
from documents.monitoring.rules import GROUPS
from documents.monitoring.spec import Dashboard, Group, metrics_of
from launcher.metrics import LauncherMetrics
from muster.metrics import PlumbingMetrics
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from real_prometheus import MONITORING
from rest.metrics import RestMetrics
from runtime_agent.domain.verdict import RULES
from runtime_agent.fence import FenceMetrics
from runtime_agent.metrics import AgentMetrics
from runtime_agent.usage_metrics import UsageMetrics
from scheduler.metrics import SchedulerMetrics

ROOT = MONITORING.parents[1]
REGISTRIES: tuple[Callable[[CollectorRegistry], object], ...] = (
    PlumbingMetrics, RestMetrics, LauncherMetrics, SchedulerMetrics, AlertingMetrics, AgentMetrics,
    FenceMetrics,
    lambda registry: UsageMetrics(registry, "node", 60.0, shows_jobs=True),
    lambda registry: ProcessCollector(registry=registry),
    lambda registry: PlatformCollector(registry=registry),
    lambda registry: GCCollector(registry=registry),
)  # fmt: skip
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "ALERTS"}
OF_OTHERS_TOO = re.compile(r"\b((?:DCGM_|gpu_|nvidiasmi_|process_)\w+)((?:\{[^}]*\})?)")
OWN_ALERTS = {*CAN_BE_OFF, *FAILURES.values(), event_rules.FAILS, event_rules.FLOODS}
BURN = "1h"
"""Burn rates are of a time of their own."""
OVER_TIME = re.compile(r"\b(?:rate|irate)\([^\[\]]*\[([^\]]*)\]")


def exported() -> Iterator[str]:
    """The names of all series that services export."""
    for make in REGISTRIES:
        registry = CollectorRegistry()
        make(registry)
        for family in registry.collect():
            match family.type:
                case "counter":
                    yield f"{family.name}_total"
                case "histogram":
                    yield from (f"{family.name}{end}" for end in ("_bucket", "_count", "_sum"))
                case _:
                    yield family.name


KNOWN = {*exported(), *OF_PROMETHEUS}


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_a_dashboard_asks_for_metrics_that_there_are(board: Dashboard) -> None:
    asked = set[str]().union(*(metrics_of(panel.query) for panel in board.panels))
    asked |= {variable.metric for variable in board.variables}
    assert asked
    assert not asked - KNOWN


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_rule_asks_for_metrics_that_there_are_and_has_a_twin_for_each(group: Group) -> None:
    twins = files.twins(group)
    for rule in group.rules:
        asked = metrics_of(rule.expr)
        assert asked, rule.name
        assert not asked - KNOWN, rule.name
        assert {each for each in asked if rule.name in twins.get(each, ())} == (
            asked - rule.optional.keys()
        )


def test_every_rule_has_a_runbook_heading_of_its_own() -> None:
    names = [rule.name for group in GROUPS for rule in group.rules]
    assert len(set(names)) == len(names)
    made = files.generated(ROOT)
    headings = set(re.findall(r"^## (.*)$", made[ROOT / files.RUNBOOK], re.MULTILINE))
    linked = [
        rule["annotations"]["runbook_url"]
        for group in GROUPS
        for rule in files.rule_group(group)["rules"]
    ]
    assert {f"{files.RUNBOOK}#{heading.lower()}" for heading in headings} == set(linked)


def test_metrics_that_others_also_export_are_asked_for_of_musters_own_processes_and_nodes() -> None:
    queries = [rule.expr for group in GROUPS for rule in group.rules]
    queries += [panel.query for board in DASHBOARDS for panel in board.panels]
    found = [each for query in queries for each in OF_OTHERS_TOO.findall(query)]
    assert found
    for metric, matchers in found:
        assert re.search("service" if metric.startswith("process_") else "node", matchers), metric


def test_no_pod_that_was_to_end_counts_as_a_failure() -> None:
    of_failures = re.compile(ENDS.removeprefix('rule!~"').removesuffix('"'))
    left_out = {rule for rule in RULES if of_failures.fullmatch(rule)}
    assert {"succeeded", "stopped", "completed", "preempted", "withdrawn"} <= left_out
    assert left_out == set(of_failures.pattern.split("|"))


def test_a_summary_has_whole_numbers_where_prometheus_extrapolates() -> None:
    """An increase by 3 is mostly 3.0526…"""
    for rule in (rule for group in GROUPS for rule in group.rules):
        if "increase(" in rule.expr:
            assert "{{ $value }}" not in rule.summary, rule.name


def test_no_rule_has_the_name_of_an_alert_that_muster_raises_itself() -> None:
    """Mutes and actions know alerts by their names."""
    names = {rule.name for group in GROUPS for rule in group.rules}
    assert not names & OWN_ALERTS


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_a_dashboard_keeps_grafanas_own_rules(board: Dashboard) -> None:
    """Those of Grafana's dashboard-linter: the data source is chosen above, each panel has a unit
    and a description, ids are unique, nothing overlaps, rates go by the interval.
    """
    made = json.loads(grafana.document(board))
    (source, *others) = made["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    for each in (*panels, *others):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    chosen = {each["name"] for each in others} | {"__rate_interval", "__range", "__range_s"}
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        (target,) = panel["targets"]
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= chosen
        assert set(OVER_TIME.findall(target["expr"])) <= {"$__rate_interval", "$__range", BURN}
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    cells = [
        (place["x"] + right, place["y"] + down)
        for place in (panel["gridPos"] for panel in made["panels"])
        for right in range(place["w"])
        for down in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_dashboards_have_names_of_their_own() -> None:
    for names in ([each.uid for each in DASHBOARDS], [each.title for each in DASHBOARDS]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ('sum by (le, a) (rate(x_bucket{a="y"}[$__rate_interval])) / on (a) group_left z',
         {"x_bucket", "z"}),
        ("histogram_quantile(0.95, x) > 14.4 * (1 - 0.999)", {"x"}),
        ('topk(5, count by (node) (up{job=~"$job"} == 0)) or vector(0)', {"up"}),
    ],
)  # fmt: skip
def test_the_metrics_of_a_query_are_found(query: str, asked: set[str]) -> None:
    assert metrics_of(query) == asked
