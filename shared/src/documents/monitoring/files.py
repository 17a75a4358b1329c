"""All files that are made from the dashboards and alert rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from documents.monitoring import grafana, pages
from documents.monitoring.dashboards import DASHBOARDS
from documents.monitoring.rules import GROUPS
from documents.monitoring.spec import Group, Rule, metrics_of

MONITORING = Path("deploy/monitoring")
COMPONENT = Path("deploy/k8s/components/monitoring")
RUNBOOK = "docs/alert-rules.md"
MISSING = "MetricMissing"
MISSING_WAIT = "10m"
FOLDERS = (MONITORING / "dashboards", MONITORING / "rules", COMPONENT / "rules")
"""They hold nothing but generated files."""
COMPONENT_HEAD: dict[str, Any] = {
    "apiVersion": "kustomize.config.k8s.io/v1alpha1",
    "kind": "Component",
}
RUNBOOKS_OF_SITE: dict[str, Any] = {
    "source": {"kind": "ConfigMap", "name": "settings", "fieldPath": "data.MUSTER_DOCS_URL"},
    "targets": [
        {
            "select": {"kind": "PrometheusRule"},
            "fieldPaths": ["spec.groups.*.rules.*.annotations.runbook_url"],
            "options": {"delimiter": "/", "index": 0},
        }
    ],
}
"""Where people read the folder `docs`: the overlay's setting, as Alerting has it."""


def generated(root: Path) -> dict[Path, str]:
    """Every file with its text."""
    files = {
        root / MONITORING / "dashboards" / f"{board.uid}.json": grafana.document(board)
        for board in DASHBOARDS
    }
    for group in GROUPS:
        rules = rule_group(group)
        plain, operator = {"groups": [rules]}, _prometheus_rule(group, rules)
        files[root / MONITORING / "rules" / f"{group.name}.yaml"] = _yaml(plain)
        files[root / COMPONENT / "rules" / f"{group.name}.yaml"] = _yaml(operator)
    files[root / MONITORING / "kustomization.yaml"] = _yaml(_config_maps())
    paths = [f"rules/{group.name}.yaml" for group in GROUPS]
    component = COMPONENT_HEAD | {
        "resources": ["pod-monitor.yaml", *paths, "../../../monitoring"],
        "replacements": [RUNBOOKS_OF_SITE],
    }
    files[root / COMPONENT / "kustomization.yaml"] = _yaml(component)
    files[root / "docs/dashboards.md"] = pages.dashboards(DASHBOARDS)
    files[root / RUNBOOK] = pages.rules(GROUPS)
    return files


def left(root: Path, made: dict[Path, str]) -> list[Path]:
    """Files of former dashboards and groups."""
    return sorted({path for each in FOLDERS for path in (root / each).glob("*.*")} - made.keys())


def rule_group(group: Group) -> dict[str, Any]:
    """A group as Prometheus reads it, with a rule that fires for each metric that is missing."""
    return {
        "name": f"muster-{group.name}",
        "rules": [*map(_rule, group.rules), *_twins(group)],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    made: dict[str, Any] = {"alert": rule.name, "expr": rule.expr}
    if rule.wait:
        made["for"] = rule.wait
    if rule.keep:
        made["keep_firing_for"] = rule.keep
    made["labels"] = {"severity": rule.severity}
    made["annotations"] = {
        "summary": rule.summary,
        "description": f"{rule.means} {rule.action}",
        "runbook_url": f"{RUNBOOK}#{rule.name.lower()}",
    }
    return made


def twins(group: Group) -> dict[str, list[str]]:
    """The rules that could not fire without a metric, by the metric."""
    found: dict[str, list[str]] = {}
    for rule in group.rules:
        for metric in sorted(metrics_of(rule.expr) - rule.optional.keys()):
            found.setdefault(metric, []).append(rule.name)
    return found


def _twins(group: Group) -> Iterator[dict[str, Any]]:
    for metric, names in twins(group).items():
        yield {
            "alert": MISSING,
            "expr": f"absent({metric})",
            "for": MISSING_WAIT,
            "labels": {"severity": "warning", "metric": metric},
            "annotations": {
                "summary": f"Prometheus has no {metric}: {', '.join(names)} can't fire",
                "description": "No service is scraped that exports it.",
                "runbook_url": f"{RUNBOOK}#{MISSING.lower()}",
            },
        }


def _config_maps() -> dict[str, Any]:
    """A ConfigMap for each dashboard. Grafana's sidecar finds them by their label."""
    uids = [board.uid for board in DASHBOARDS]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "muster-system",
        "configMapGenerator": [
            {"name": f"dashboard-{uid}", "files": [f"dashboards/{uid}.json"]} for uid in uids
        ],
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {"grafana_dashboard": "1", "app.kubernetes.io/part-of": "muster"},
        },
    }


def _prometheus_rule(group: Group, rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": f"muster-{group.name}",
            "namespace": "muster-system",
            "labels": {"app.kubernetes.io/part-of": "muster"},
        },
        "spec": {"groups": [rules]},
    }


def _yaml(content: dict[str, Any]) -> str:
    text = yaml.safe_dump(content, sort_keys=False, width=96, allow_unicode=True)
    return f"# Made by `make generate` from shared/src/documents/monitoring.\n{text}"
