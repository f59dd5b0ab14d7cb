"""Tests of the chart's values: committed files, defaults and descriptions."""

import json

import pytest
import yaml

from charts.values.__main__ import CHART, rendered
from charts.values.model import ELSEWHERE, ChartValues
from charts.values.render import entries, image_list
from rljob_operator.process.settings import OperatorSettings


@pytest.mark.parametrize(("name", "text"), rendered().items())
def test_the_committed_files_are_what_the_model_makes(name, text):
    assert (CHART / name).read_text() == text, "run `make chart`"


def test_values_yaml_holds_the_defaults_of_the_model():
    data = yaml.safe_load((CHART / "values.yaml").read_text())
    assert ChartValues.model_validate(data) == ChartValues()


def test_every_value_says_what_it_means():
    for entry in entries(ChartValues()):
        assert entry.text.endswith("."), entry.path


def test_what_the_templates_set_cannot_be_set_twice():
    paths = [entry.path for entry in entries(ChartValues())]
    for path in ELSEWHERE:
        assert not [item for item in paths if item == path or item.startswith(f"{path}.")]
    for name in OperatorSettings.model_fields:
        alias = OperatorSettings.model_fields[name].alias
        assert f"settings.{alias}" in (*paths, *ELSEWHERE)


def test_the_schema_is_closed_but_for_what_other_charts_say():
    schema = json.loads((CHART / "values.schema.json").read_text())
    opened = [
        name
        for name, item in {"": schema, **schema["$defs"]}.items()
        if "properties" in item and item["additionalProperties"] is not False
    ]
    assert opened == ["GlobalValues"]
    assert not [name for name, item in schema["$defs"].items() if "required" in item], "a default stands in"


def test_the_image_list_is_for_a_mirror():
    assert image_list("1.2.3").splitlines() == [
        "rljob-operator:1.2.3",
        "rljob-databuffer:1.2.3",
        "rljob-worker:1.2.3",
        "rljob-worker-cpu:1.2.3",
        "rljob-serve:1.2.3",
        "rljob-serve-cuda:1.2.3",
        "rljob-worker-vllm:1.2.3",
        "rljob-worker-vllm-cpu:1.2.3",
    ]
