"""How many devices a pod must find."""

import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.accelerators import require_devices
from rljob_worker.errors import InvalidJob

(FOUR_GPUS,) = make_plan(
    "workerGroups=[{name: train, replicas: 1, accelerator: {profile: nvidia, count: 4}}]",
).groups


def test_as_many_as_workers_are_enough():
    require_devices(FOUR_GPUS, 4)
    require_devices(FOUR_GPUS, 5)


@pytest.mark.parametrize(
    ("num_found", "said"),
    [(0, "no CUDA device for a pod of worker group train, which wants 4 (profile nvidia); use profile cpu, or run"),
     (1, "only 1 CUDA device for a pod of worker group train, which wants 4 (profile nvidia); lower accelerator.count "
         "to 1, or run"),
     (3, "only 3 CUDA devices for a pod")],
)  # fmt: skip
def test_fewer_are_refused_for_good_with_the_fix(num_found, said):
    with pytest.raises(InvalidJob) as refusal:
        require_devices(FOUR_GPUS, num_found)
    assert str(refusal.value).startswith(said) and refusal.value.exit_code == 64
