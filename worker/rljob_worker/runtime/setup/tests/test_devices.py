"""What torch has of each kind of device."""

import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.devices.modules import num_devices
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup.devices import require_devices_of_torch


def group(profile: str):
    (only,) = make_plan(f"workerGroups=[{{name: train, accelerator: {{profile: {profile}, count: 2}}}}]").groups
    return only


def test_hidden_devices_and_those_of_an_absent_plugin_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [num_devices(kind) for kind in ("cuda", "mlu", "hpu")] == [0, 0, 0]


def test_a_group_for_cpus_needs_no_device_and_another_does() -> None:
    require_devices_of_torch(group("cpu"))
    with pytest.raises(InvalidJob, match="no MLU device for a pod of worker group train, which wants 2"):
        require_devices_of_torch(group("cambricon"))
