"""Tests of accelerator profiles: vendors, a site's changes, mistakes."""

import pytest
from pydantic import ValidationError

from rljob_api.catalogue.profiles import DEFAULT, profiles_from
from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import SMALL, make_job


@pytest.mark.parametrize("name", DEFAULT)
def test_every_vendor_plans(name):
    count = min(8, max(DEFAULT[name].counts, default=8))
    override = f"workerGroups=[{{name: a, accelerator: {{profile: {name}, count: {count}}}}}]"
    result = plan(make_job(override)).group("a")
    assert (result.device, result.backend, result.profile) == (DEFAULT[name].device, DEFAULT[name].backend, name)


def test_pods_are_let_onto_nodes_that_a_vendor_keeps_for_its_accelerators():
    taints = [item for profile in DEFAULT.values() for item in profile.tolerations]
    assert {"nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"} <= {item["key"] for item in taints}
    assert [item for item in taints if (item["operator"], item["effect"]) != ("Exists", "NoSchedule")] == []


def test_two_generations_of_ascend_have_two_resources():
    assert DEFAULT["ascend-910"].resource == "huawei.com/Ascend910"
    assert DEFAULT["huawei-npu"].resource == "huawei.com/npu"
    assert DEFAULT["ascend-910"].backend == DEFAULT["huawei-npu"].backend == "hccl"


def test_a_site_changes_fields_and_adds_vendors():
    site = profiles_from(
        {
            "nvidia-h100": {"nodeSelector": {"pool": "fast"}},
            "moore": {"resource": "mthreads.com/vgpu", "device": "musa", "backend": "mccl"},
        }
    )
    assert site["nvidia-h100"].node_selector == {"pool": "fast"}
    assert site["nvidia-h100"].resource == "nvidia.com/gpu"
    job = parse_job(SMALL, ["workerGroups=[{name: a, accelerator: {profile: moore}}]"], site)
    assert plan(job, site).group("a").device == "musa"
    assert "moore" not in DEFAULT


def test_a_misspelt_profile_field_is_an_error():
    with pytest.raises(ValidationError):
        profiles_from({"cpu": {"nodeSelectors": {}}})
