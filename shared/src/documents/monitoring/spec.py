"""What a dashboard and an alert rule are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["lines", "stack", "value", "table"]
Severity = Literal["critical", "warning", "info"]

SERVICE_NAMES = ("rest", "launcher", "scheduler", "alerting")
OF_SERVICES = f'service=~"{"|".join(SERVICE_NAMES)}"'
OF_OWN_NODES = 'node_name!=""'
"""Other software exports metrics of the same names: no series of its own has this label."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One question about the cluster. `unit` is Grafana's name of it; `query` is PromQL with the
    dashboard's variables; `tells` and `action` are read beside it.
    """

    title: str
    unit: str
    query: str
    tells: str
    action: str
    legend: str = ""
    shape: Shape = "lines"


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice above a dashboard: the values of a label of a metric, among those that earlier
    choices leave. `many`: several at once, or all.
    """

    name: str
    metric: str
    label: str
    many: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`uid` is its address in Grafana, and the name of its file."""

    title: str
    uid: str
    tells: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()

    @property
    def panels(self) -> list[Panel]:
        """All of its panels, in their order."""
        return [panel for row in self.rows for panel in row.panels]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition over metrics that an operator must know of. `means` and `action` are its runbook.
    `openpai`: the name of OpenPAI's alert that it stands for. `optional`: metrics that it asks for
    and that need not exist, each with the reason; all others have a twin that fires without them.
    """

    name: str
    severity: Severity
    expr: str
    summary: str
    means: str
    action: str
    wait: str = ""
    keep: str = ""
    openpai: Sequence[str] = ()
    optional: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """A promise: of `total`, the share `target` is `good`. Both are counters, by their selectors.
    `name` begins its rules' names.
    """

    name: str
    title: str
    good: str
    total: str
    target: float
    means: str
    action: str

    def share(self, over: str) -> str:
        """The kept share over a time; no data where nothing happened. A counter of good ones need
        not exist before the first.
        """
        total = f"sum(rate({self.total}[{over}]))"
        return f"(sum(rate({self.good}[{over}])) or 0 * {total}) / {total}"

    def burn_rate(self, over: str) -> str:
        """How many times faster than allowed failures come."""
        return f"(1 - {self.share(over)}) / {1 - self.target:.6g}"

    def failures(self, over: str) -> str:
        """How many failed in a time."""
        return f"(1 - {self.share(over)}) * sum(increase({self.total}[{over}]))"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that a site switches on or off together: one file."""

    name: str
    tells: str
    rules: Sequence[Rule]


_WORDS = {
    "abs", "absent", "absent_over_time", "and", "avg", "avg_over_time", "bool", "bottomk", "by",
    "ceil", "changes", "clamp_max", "clamp_min", "count", "count_over_time", "count_values",
    "day_of_week", "delta", "deriv", "floor", "group", "group_left", "group_right",
    "histogram_quantile", "idelta", "ignoring", "increase", "inf", "irate", "label_replace",
    "last_over_time", "max", "max_over_time", "min", "min_over_time", "nan", "offset", "on",
    "or", "predict_linear", "quantile", "rate", "resets", "round", "scalar", "sort",
    "sort_desc", "stddev", "sum", "sum_over_time", "time", "timestamp", "topk", "unless",
    "vector", "without",
}  # fmt: skip


def metrics_of(query: str) -> set[str]:
    """The names of the metrics that a query asks for."""
    bare = re.sub(r'"[^"]*"|\$\w+', "", query)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[A-Za-z_][A-Za-z0-9_]*", bare)) - _WORDS
