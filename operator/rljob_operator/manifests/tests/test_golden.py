import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.manifests.tests.golden_pods import GOLDEN, rendered, rendered_ray_service, rendered_service


@pytest.mark.parametrize("profile", DEFAULT)
def test_a_vendors_pod_is_as_in_its_golden_file(profile):
    expected = (GOLDEN / f"{profile}.yaml").read_text(encoding="utf-8")
    assert rendered(profile) == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


def test_the_pod_of_a_model_is_as_in_its_golden_file():
    expected = (GOLDEN / "service.yaml").read_text(encoding="utf-8")
    assert rendered_service() == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


def test_the_ray_service_of_a_model_is_as_in_its_golden_file():
    expected = (GOLDEN / "ray-service.yaml").read_text(encoding="utf-8")
    assert rendered_ray_service() == expected, "if meant: python -m rljob_operator.manifests.tests.golden_pods"


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {*DEFAULT, "service", "ray-service"}
