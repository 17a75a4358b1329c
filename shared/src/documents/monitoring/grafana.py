"""Grafana's JSON of a dashboard: the only module that knows how Grafana writes one."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as styles
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from documents.monitoring.spec import Dashboard, Panel, Variable

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS, WIDTH, SMALL, HEIGHT, LOW = 24, 12, 6, 8, 4


def document(board: Dashboard) -> str:
    """The file that Grafana loads."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.tells)
        .tags(["muster"])
        .readonly()
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    chosen: list[Variable] = []
    for variable in board.variables:
        made = made.with_variable(_variable(variable, chosen))
        chosen.append(variable)
    place, number = _Place(), 0
    for row in board.rows:
        number += 1
        made = made.with_row(
            dashboard.Row(row.title).id(number).grid_pos(place.of(COLUMNS, 1, is_new=True))
        )
        for panel in row.panels:
            number += 1
            size = (SMALL, LOW) if panel.shape == "value" else (WIDTH, HEIGHT)
            made = made.with_panel(_panel(panel).id(number).grid_pos(place.of(*size)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


class _Place:
    """Lays panels out from left to right. Beside a higher one nothing is laid below."""

    def __init__(self) -> None:
        self._x = self._y = self._height = 0

    def of(self, width: int, height: int, *, is_new: bool = False) -> models.GridPos:
        """The next place; `is_new`: at the beginning of a line."""
        if is_new or self._x + width > COLUMNS:
            self._x, self._y, self._height = 0, self._y + self._height, 0
        place = models.GridPos(h=height, w=width, x=self._x, y=self._y)
        self._x += width
        self._height = max(self._height, height)
        return place


def _variable(variable: Variable, earlier: list[Variable]) -> dashboard.QueryVariable:
    among = ",".join(f'{each.label}=~"${each.name}"' for each in earlier)
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.name.replace("_", " "))
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}{{{among}}}, {variable.label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.many:
        made = made.multi(True).include_all(True).all_value(".+")
    return made


def _panel(panel: Panel) -> Any:
    target = prometheus.Dataquery().expr(panel.query).ref_id("A")
    made: Any
    match panel.shape:
        case "value":
            made = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            target = target.instant()
        case "table":
            made = table.Panel()
            target = target.instant().format(PromQueryFormat.TABLE)
        case "lines" | "stack":
            made = _lines(panel)
    if panel.legend:
        target = target.legend_format(panel.legend)
    return (
        made.title(panel.title)
        .description(f"{panel.tells} {panel.action}")
        .unit(panel.unit)
        .datasource(SOURCE)
        .with_target(target)
    )


def _lines(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(styles.LegendDisplayMode.LIST)
        .placement(styles.LegendPlacement.BOTTOM)
    )
    made = timeseries.Panel().min(0).legend(legend)
    if panel.shape == "stack":
        stacking = common.StackingConfig().mode(styles.StackingMode.NORMAL)
        made = made.fill_opacity(30).stacking(stacking)
    return made
