"""Every alert rule fires where it should and is silent where not: promtool judges."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from documents.monitoring import files
from documents.monitoring.objectives import OBJECTIVES
from documents.monitoring.rules import GROUPS, PROMISES, SERVICES
from documents.monitoring.spec import Group, Objective
from real_prometheus import MONITORING, check
from rule_cases import CASES, Series

pytestmark = pytest.mark.prometheus

RULES = MONITORING / "rules"


def firing(
    alert: str, series: Series, expected: int | None, *, at: str = "1h", interval: str = "1m"
) -> dict[str, Any]:
    """A test of promtool: how many alerts of this name fire; None: at least one."""
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    samples = [] if expected == 0 else [{"labels": "{}", "value": expected or 1}]
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": each} for name, each in series.items()],
        "promql_expr_test": [
            {
                "expr": f"{query} > bool 0" if expected is None else query,
                "eval_time": at,
                "exp_samples": samples,
            }
        ],
    }


def run(work: Path, group: Group, tests: list[dict[str, Any]], interval: str = "1m") -> None:
    """promtool evaluates all rules of the group each interval."""
    file = work / "rules.test.yaml"
    rules = [str(RULES / f"{group.name}.yaml")]
    made = {"rule_files": rules, "evaluation_interval": interval, "tests": tests}
    file.write_text(yaml.safe_dump(made))
    check("test", "rules", file)


@pytest.mark.parametrize("interval", ["1m", "30m"])
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_rule_fires_and_stays_silent(group: Group, interval: str, tmp_path: Path) -> None:
    tests = []
    for rule in group.rules:
        case = CASES[rule.name]
        if case.interval == interval:
            how = {"at": case.at, "interval": interval}
            tests.append(firing(rule.name, case.fires, None, **how))
            tests.append(firing(rule.name, case.silent, 0, **how))
    run(tmp_path, group, tests, interval)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_missing_metric_is_an_alert(group: Group, tmp_path: Path) -> None:
    twins = files.twins(group)
    all_there = dict.fromkeys(twins, "0+0x60")
    tests = [firing(files.MISSING, {}, len(twins)), firing(files.MISSING, all_there, 0)]
    run(tmp_path, group, tests)


def test_an_away_service_is_named(tmp_path: Path) -> None:
    away = firing("ServiceAway", CASES["ServiceAway"].fires, 1)
    labels = '{alertname="ServiceAway", service="alerting"}'
    (asked,) = away["promql_expr_test"]
    asked["expr"] = 'sum by (alertname, service) (ALERTS{alertname="ServiceAway"})'
    asked["exp_samples"] = [{"labels": labels, "value": 1}]
    run(tmp_path, SERVICES, [away])


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda each: each.name)
def test_a_promise_is_broken_where_nothing_was_ever_good(
    objective: Objective, tmp_path: Path
) -> None:
    failed = objective.total.removesuffix("}") + ', status="500"}'
    series = {failed if objective.total.endswith("}") else objective.total: "0+100x60"}
    run(tmp_path, PROMISES, [firing(f"{objective.name}BudgetBurnsFast", series, None)])


@pytest.mark.parametrize(("rises", "fires"), [("1 2 3", 0), ("4 8 12", 1)])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda each: each.name)
def test_a_few_failures_where_little_happens_break_no_promise(
    objective: Objective, rises: str, fires: int, tmp_path: Path
) -> None:
    failed = objective.total.removesuffix("}") + ', status="500"}'
    counter = failed if objective.total.endswith("}") else objective.total
    ends = rises.split()[-1]
    lately = {counter: f"0x50 {rises} {ends}x20"}
    run(tmp_path, PROMISES, [firing(f"{objective.name}BudgetBurnsFast", lately, fires)])
    lately = {counter: f"0x140 {rises} {ends}x10"}
    slow = firing(f"{objective.name}BudgetBurnsSlowly", lately, fires, at="74h", interval="30m")
    run(tmp_path, PROMISES, [slow], "30m")


@pytest.mark.parametrize(
    ("rule", "metric"),
    [
        ("NodesUnhealthy", 'nodes{state="unhealthy", instance="%s"}'),
        ("NodesWithheld", 'nodes_withheld{instance="%s"}'),
        ("NodeNamesClash", 'node_name_clashes{instance="%s"}'),
        ("PreemptionOverdue", 'overdue_gangs{instance="%s"}'),
    ],
)
def test_two_schedulers_raise_one_alert(rule: str, metric: str, tmp_path: Path) -> None:
    (group,) = [each for each in GROUPS if rule in {rule.name for rule in each.rules}]
    series = {f"muster_scheduler_{metric % instance}": "1+0x60" for instance in "ab"}
    run(tmp_path, group, [firing(rule, series, 1)])


def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    check("check", "rules", *sorted(RULES.glob("*.yaml")))
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (tmp_path / "token").write_text("token")
    config["rule_files"] = [str(RULES / "*.yaml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    check("check", "config", tmp_path / "prometheus.yml")


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert {rule.name for group in GROUPS for rule in group.rules} == CASES.keys()
