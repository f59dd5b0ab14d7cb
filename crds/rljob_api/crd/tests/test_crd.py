"""Tests of the generated CustomResourceDefinition: schema, rules, size."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rljob_api import job_from_object, parse_job
from rljob_api.crd.definition import COLUMNS, chart_text, definition, definition_text, object_schema
from rljob_api.crd.rules import ENDED_RULE, RULES, immutability_rules
from rljob_api.crd.structural import schema_at, walk
from rljob_api.crd.tests.structural_defaults import fill_defaults
from rljob_api.lifetime.changes import MUTABLE, MUTABLE_WHILE_SUSPENDED
from rljob_api.tests.builders import FULL_EXAMPLE, SMALL
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.v1alpha1.algorithm import AlgorithmName

CHECKOUT = Path(__file__).parents[4]
SCHEMA = object_schema()
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.yaml"))
# The API server closes an object's fields by itself: these three keywords are what it takes in place of a type.
TYPED = {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}


def test_the_committed_files_are_what_the_types_make():
    assert (CHECKOUT / "crds/rljobs.rljob.dev.yaml").read_text() == definition_text(), "run `make crds`"
    chart = CHECKOUT / "charts/rljob/templates/crds/rljobs.rljob.dev.yaml"
    assert chart.read_text() == chart_text(), "run `make crds`"


def test_client_side_apply_has_room_for_the_definition():
    # kubectl keeps it in an annotation of at most 262,144 bytes, as JSON
    assert len(json.dumps(definition())) < 200_000


def test_the_schema_is_structural():
    for path, schema in walk(SCHEMA):
        assert TYPED & schema.keys(), path
        assert not {"$ref", "title", "oneOf", "allOf", "const"} & schema.keys(), path
        assert not {"nullable", "enum"} <= schema.keys(), "an enum would have to list the null"
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_what_rules_run_over_is_bounded():
    for path, schema in walk(schema_at(SCHEMA, "spec")):
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        elif schema.get("type") == "string":
            assert {"maxLength", "enum"} & schema.keys(), path
        elif isinstance(schema.get("additionalProperties"), dict):
            assert "maxProperties" in schema, path


def test_bounds_and_references_are_translated():
    assert schema_at(SCHEMA, "spec.training.learningRate") == {
        "type": "number",
        "description": "Peak learning rate. Default 1.0e-6.",
        "default": 1e-6,
        "minimum": 0,
        "exclusiveMinimum": True,
    }
    steps = schema_at(SCHEMA, "spec.stop.steps")
    assert (steps["type"], steps["format"], steps["minimum"], steps["default"]) == ("integer", "int64", 1, 500)
    # an object's default is empty: its fields have theirs
    assert schema_at(SCHEMA, "spec.rollout")["default"] == {}
    # text or None in Python is a text that may be absent or null
    queue = schema_at(SCHEMA, "spec.scheduling.queue")
    assert (queue["type"], queue["nullable"], "default" in queue) == ("string", True, False)
    assert "nullable" not in schema_at(SCHEMA, "spec.scheduling.provider")
    memory = schema_at(SCHEMA, "spec.dataBuffer.memory")
    assert memory["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert "type" not in memory


def test_free_form_values_are_kept_as_they_are():
    assert schema_at(SCHEMA, "spec.workerGroups[].template.spec")["x-kubernetes-preserve-unknown-fields"]
    assert schema_at(SCHEMA, "spec.rewards[].options")["x-kubernetes-preserve-unknown-fields"]
    assert set(schema_at(SCHEMA, "spec.workerGroups[].template")["properties"]) == {"metadata", "spec"}


def test_what_the_operator_writes_has_no_defaults():
    assert not [path for path, schema in walk(schema_at(SCHEMA, "status")) if "default" in schema]


def test_columns_show_fields_that_there_are():
    for column in COLUMNS:
        if not column["jsonPath"].startswith(".metadata"):
            schema_at(SCHEMA, re.sub(r"\[\?[^]]*\]", "[]", column["jsonPath"].removeprefix(".")))


def filled(text):
    return fill_defaults(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_the_same_job_on_a_cluster(path):
    assert job_from_object(filled(path.read_text())) == parse_job(path.read_text())


def test_the_full_example_is_the_same_job_on_a_cluster():
    assert job_from_object(filled(FULL_EXAMPLE)) == parse_job(FULL_EXAMPLE)


@pytest.mark.parametrize("name", AlgorithmName.__args__)
def test_defaults_of_the_api_server_are_never_those_of_another_algorithm(name):
    text = SMALL.replace("name: GRPO, groupSize: 4", f"name: {name}, groupSize: 4")
    problems = ()
    try:
        expected = parse_job(text)
    except ValueError as error:
        problems = error.problems
    if problems:
        with pytest.raises(ValueError) as caught:
            job_from_object(filled(text))
        assert [problem.path for problem in caught.value.problems] == [problem.path for problem in problems]
    else:
        assert job_from_object(filled(text)) == expected


def test_every_field_of_the_spec_is_immutable_or_listed():
    ruled = {rule.field for rule in immutability_rules(schema_at(SCHEMA, "spec"))}
    for field in RLJobSpec.model_fields.values():
        name = field.alias
        below = {f"{name}.{item}" for item in schema_at(SCHEMA, f"spec.{name}").get("properties", ())}
        assert (name in ruled) + (name in MUTABLE) + bool(below & ruled) == 1, name
    assert set(MUTABLE_WHILE_SUSPENDED) < ruled
    assert {"failurePolicy.rules", "scheduling.queue"} < ruled
    assert not ruled & set(MUTABLE)


def test_steps_are_raised_and_not_lowered():
    rules = {rule.field: rule.cel for rule in immutability_rules(schema_at(SCHEMA, "spec"))}
    assert rules["stop.steps"] == (
        "self.stop.steps == oldSelf.stop.steps || self.stop.steps > oldSelf.stop.steps && "
        "(self.training.schedule == 'Constant'"
        " || has(self.training.scheduleSteps) && self.stop.steps <= self.training.scheduleSteps)"
    )
    assert "stop" not in rules and "stop.rewardAbove" in rules


def test_a_null_counts_as_absent_when_fields_are_compared():
    rules = {rule.field: rule.cel for rule in immutability_rules(schema_at(SCHEMA, "spec"))}
    assert rules["seed"] == "self.seed == oldSelf.seed"
    claim = "storage.persistentVolumeClaim"
    same = f"has(oldSelf.{claim}) && self.{claim} == oldSelf.{claim}"
    assert f"(has(self.{claim}) ? {same} : !has(oldSelf.{claim}))" in rules["storage"]
    assert rules["storage"].startswith("(has(self.storage) ? has(oldSelf.storage) && ")
    assert rules["checkpoint"].startswith("self.checkpoint.everySteps == oldSelf.checkpoint.everySteps && ")
    assert "(has(self.checkpoint.initFrom) ? has(oldSelf.checkpoint.initFrom) && " in rules["checkpoint"]


@pytest.mark.parametrize("rule", [*RULES, ENDED_RULE], ids=lambda rule: rule.message)
def test_a_rule_says_where_it_stands(rule):
    holder = schema_at(SCHEMA, rule.path)
    assert rule.to_schema() in holder["x-kubernetes-validations"]
    schema_at(holder, rule.field)


def test_messages_are_put_together_at_a_cost_that_the_api_server_can_bound():
    assert not [rule for rule in RULES if " + " in rule.message_cel]
