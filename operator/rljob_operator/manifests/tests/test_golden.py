"""Tests of pods against their golden files."""

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.manifests.tests.golden_pods import GOLDEN, SERVED, rendered


@pytest.mark.parametrize("profile", DEFAULT)
def test_a_vendors_pod_is_as_in_its_golden_file(profile):
    expected = (GOLDEN / f"{profile}.yaml").read_text(encoding="utf-8")
    assert rendered(profile) == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


@pytest.mark.parametrize("name", SERVED)
def test_what_serves_a_model_is_as_in_its_golden_file(name):
    expected = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert SERVED[name]() == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {*DEFAULT, *SERVED}
