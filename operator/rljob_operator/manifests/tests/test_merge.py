"""Tests of merging a template over our manifest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.checks.templates import template_problems
from rljob_operator.manifests.pod.merge import MERGE_KEYS, merge

values = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
mappings = st.dictionaries(st.text(max_size=2), values, max_size=4)


@given(mappings)
def test_nothing_over_ours_is_ours(ours):
    assert merge(ours, {}) == ours


@given(mappings, mappings)
def test_merging_twice_is_merging_once(ours, theirs):
    once = merge(ours, theirs)
    assert merge(once, theirs) == once


def test_mappings_merge_scalars_replace_and_null_deletes():
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": None}) == {"a": {"b": 9, "c": 2}}


def test_named_entries_merge_by_name_and_new_ones_follow():
    ours = {"containers": [{"name": "worker", "image": "a", "env": [{"name": "X", "value": "1"}]}]}
    theirs = {"containers": [{"name": "more"}, {"name": "worker", "env": [{"name": "Y", "value": "2"}]}]}
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert merge(ours, theirs) == {"containers": [{"name": "worker", "image": "a", "env": env}, {"name": "more"}]}


def test_a_volume_of_another_kind_replaces_ours_and_the_same_kind_merges():
    ours = {"volumes": [{"name": "runs", "emptyDir": {"medium": "Memory"}}]}
    other = merge(ours, {"volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "x"}}]})
    assert other == {"volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "x"}}]}
    same = merge(ours, {"volumes": [{"name": "runs", "emptyDir": {"sizeLimit": "1Gi"}}]})
    assert same == {"volumes": [{"name": "runs", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}


def test_a_variable_with_a_value_forgets_its_reference():
    ours = {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    assert merge(ours, {"env": [{"name": "X", "value": "1"}]}) == {"env": [{"name": "X", "value": "1"}]}


def test_tolerations_of_other_keys_are_added_and_plain_lists_replaced():
    ours = {"tolerations": [{"key": "gpu", "effect": "NoSchedule"}], "args": ["a", "b"]}
    theirs = {"tolerations": [{"key": "spot", "effect": "NoSchedule"}], "args": ["c"]}
    merged = merge(ours, theirs)
    assert [item["key"] for item in merged["tolerations"]] == ["gpu", "spot"] and merged["args"] == ["c"]


def test_ports_are_the_same_without_and_with_their_default_protocol():
    merged = merge({"ports": [{"containerPort": 1, "name": "a"}]}, {"ports": [{"containerPort": 1, "protocol": "TCP"}]})
    assert merged == {"ports": [{"containerPort": 1, "name": "a", "protocol": "TCP"}]}


def test_what_is_merged_shares_nothing_with_the_template():
    theirs = {"a": {"b": [1]}}
    merge({}, theirs)["a"]["b"].append(2)
    assert theirs == {"a": {"b": [1]}}


@pytest.mark.parametrize(("field", "key"), [(field, key) for field, result in MERGE_KEYS.items() for key in result])
def test_what_entries_are_merged_by_is_checked_before(field: str, key: str) -> None:
    """A list or a mapping names nothing."""
    entries = {field: [{"name": "a", key: ["x"]}]}
    container = {"name": "worker", "resources": entries} if field == "claims" else {"name": "worker", **entries}
    templates = ({"spec": entries}, {"spec": {"containers": [container]}})
    assert any(
        '["x"]' in problem.found for template in templates for problem in template_problems(template, "template", {})
    )
