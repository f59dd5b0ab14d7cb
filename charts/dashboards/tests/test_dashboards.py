"""Dashboards as data: what the chart holds is what the generator makes, and every panel can be read."""

import json

import pytest

from charts.dashboards.__main__ import BOARDS, FILES, rendered
from charts.dashboards.alerts import ALERTS
from charts.dashboards.dashboard_spec import DashboardSpec, Panel

# a ConfigMap holds 1 MiB; an annotation of `kubectl apply` 256 KiB
MAX_FILE_BYTES = 200_000


@pytest.mark.parametrize("name", sorted(rendered()))
def test_chart_holds_what_the_generator_makes(name: str) -> None:
    assert (FILES / name).read_text() == rendered()[name], "run `make dashboards`"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_dashboard_fits_into_a_config_map_of_its_own(board: DashboardSpec) -> None:
    assert len(rendered()[f"dashboards/{board.uid}.json"].encode()) < MAX_FILE_BYTES


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_reaches_the_json_with_its_queries(board: DashboardSpec) -> None:
    panels = [panel for panel in json.loads(rendered()[f"dashboards/{board.uid}.json"])["panels"] if "targets" in panel]
    result = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}
    assert result == {panel.title: [query.expr for query in panel.queries] for panel in board.panels}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places), "panels lie on top of each other"


def test_titles_are_unique_and_every_panel_says_what_it_shows() -> None:
    panels: list[Panel] = [panel for board in BOARDS for panel in board.panels]
    assert len({panel.title for panel in panels}) == len(panels)
    assert all(panel.description.endswith(".") for panel in panels)


def test_alert_names_are_unique() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
