"""Tests of the picture of a job's graph."""

from xml.etree import ElementTree

import pytest
from hypothesis import given

from rljob_api.picture.graph_layout import lay_out
from rljob_api.picture.graph_svg import render_svg
from rljob_api.picture.svg import MAX_LABEL_LINES, wrap
from rljob_api.pipeline.tests.test_dag import dags
from rljob_api.tests.builders import PPO, TWO_GROUPS, make_plan

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture):
    return [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_every_stage_group_and_weight_edge_is_in_the_picture():
    plan = make_plan(*PPO, *TWO_GROUPS)
    shown = texts(render_svg(plan))
    for stage in plan.stages:
        assert stage.name in shown
    assert "weights/actor · DataBuffer" in shown
    assert "rollout: 4 x 1 cpu" in shown
    assert "by tokens" in " ".join(shown)


def test_lines_are_drawn_from_a_place_to_another():
    lines = [item.get("d") for item in ElementTree.fromstring(render_svg(make_plan())).iter(f"{SVG}path")]
    bends = [line for line in lines if line is not None and " C " in line]
    assert len(bends) >= len(make_plan().edges)
    assert all(line.startswith("M ") for line in bends)


def test_lines_leave_a_box_on_both_sides_of_its_middle():
    picture = ElementTree.fromstring(render_svg(make_plan()))
    stages = [item for item in picture.iter(f"{SVG}rect") if item.get("rx") == "10"]
    paths = [item.get("d").split() for item in picture.iter(f"{SVG}path") if " C " in item.get("d")]
    starts = [(float(path[1]), float(path[2])) for path in paths]  # M x y C ...
    num_starts = 0
    for box in stages:
        left, top, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        its_own = [y for x, y in starts if x == left + width and top <= y <= top + height]
        num_starts += len(its_own)
        assert not its_own or sum(its_own) / len(its_own) == pytest.approx(top + height / 2, abs=0.1)
    assert num_starts == len(make_plan().edges)


def test_lines_tell_columns_transport_and_bytes():
    titles = [item.text for item in ElementTree.fromstring(render_svg(make_plan())).iter(f"{SVG}title")]
    assert "rollout->reference: prompt_ids, response_ids (local)" in titles
    assert "advantage->update: advantages (buffer, up to 5.0 KiB a step)" in titles


def test_the_picture_is_the_same_every_time():
    assert render_svg(make_plan()) == render_svg(make_plan())


def test_long_labels_are_cut():
    lines = wrap([f"a_rather_long_column_{i}" for i in range(9)])
    assert len(lines) == MAX_LABEL_LINES
    assert lines[-1] == "and 6 more"
    assert wrap(["a", "b"]) == ["a, b"]
    assert wrap([]) == []


@given(dags())
def test_no_two_boxes_or_bends_share_a_place(graph):
    edges = [(before, name) for name, all_before in graph.after.items() for before in all_before]
    layout = lay_out(graph, edges)
    bends = [place for route in layout.routes.values() for place in route[1:-1]]
    places = [*layout.positions.values(), *bends]
    assert len(set(places)) == len(places)
    for (source, target), route in layout.routes.items():
        assert route[0] == layout.positions[source]
        assert route[-1] == layout.positions[target]
        assert [column for column, _ in route] == list(range(route[0][0], route[-1][0] + 1))
