"""From a `Board` to the JSON that Grafana imports."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, VisibilityMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh, VariableSort

from charts.dashboards.dashboard_spec import DashboardSpec, Panel, Variable

DATASOURCE = "datasource"
_SOURCE = DataSourceRef(type_val="prometheus", uid=f"${{{DATASOURCE}}}")
_HEIGHT, _WIDTH = 8, 8


def to_json(spec: DashboardSpec) -> str:
    """The dashboard's JSON, keys sorted, so that equal boards give equal files."""
    builder = (
        dashboard.Dashboard(spec.title)
        .uid(spec.uid)
        .description(spec.description)
        .tags(["rljob"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable(DATASOURCE).label("Prometheus").type("prometheus"))
    )
    for variable in spec.variables:
        builder.with_variable(_variable(variable))
    for row in spec.rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.query)
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .include_all(True)
        .multi(True)
        .all_value(".*")
    )


def _panel(panel: Panel) -> timeseries.Panel:
    builder = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .height(_HEIGHT)
        .span(_WIDTH)
        .fill_opacity(8)
        .line_width(2)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if panel.minimum is not None:
        builder.min(panel.minimum)
    if panel.maximum is not None:
        builder.max(panel.maximum)
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        builder.with_target(target)
    return builder
