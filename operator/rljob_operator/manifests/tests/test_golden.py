"""Tests of pods against their golden files."""

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.manifests.tests.golden_pods import GOLDEN, PRODUCTS, SERVED, VENDORS, rendered


@pytest.mark.parametrize("profile", VENDORS)
def test_a_vendors_pod_is_as_in_its_golden_file(profile):
    expected = (GOLDEN / f"{profile}.yaml").read_text(encoding="utf-8")
    assert rendered(profile) == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


@pytest.mark.parametrize("name", SERVED)
def test_what_serves_a_model_is_as_in_its_golden_file(name):
    expected = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert SERVED[name]() == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


@pytest.mark.parametrize("product, vendor", PRODUCTS.items())
def test_a_product_is_its_vendors_with_memory_and_nodes(product, vendor):
    own = {"name", "memory", "node_selector", "speed"}
    assert DEFAULT[product].model_dump(exclude=own) == DEFAULT[vendor].model_dump(exclude=own)
    assert DEFAULT[product].memory is not None


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {*VENDORS, *SERVED}
