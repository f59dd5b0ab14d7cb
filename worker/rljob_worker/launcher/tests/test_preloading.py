"""What is imported once for the workers of a pod."""

from importlib.util import find_spec

from rljob_api.tests.builders import TWO_GROUPS, make_plan
from rljob_worker.launcher.preloading import LIBRARIES, PRELOAD, preload_for

VLLM, MEGATRON = "rollout.engine=VLLM", "training.engine=Megatron"
TRAINS_ON_GPUS = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}, {name: rollout}]"
EVERYBODY, GENERATES, TRAINS = {"train", "rollout"}, {"rollout"}, {"train"}


def test_libraries_are_imported_for_those_who_use_them() -> None:
    assert preload_for(make_plan(), TRAINS) == (PRELOAD,)
    assert preload_for(make_plan(VLLM), TRAINS) == (PRELOAD, LIBRARIES["VLLM"])
    apart = make_plan(VLLM, MEGATRON, *TWO_GROUPS)
    assert preload_for(apart, GENERATES) == (PRELOAD, LIBRARIES["VLLM"])
    assert preload_for(apart, TRAINS) == (PRELOAD, LIBRARIES["Megatron"])
    assert preload_for(apart, EVERYBODY) == (PRELOAD, LIBRARIES["Megatron"], LIBRARIES["VLLM"])


def test_no_fork_that_has_a_device_is_of_a_process_that_imported_them() -> None:
    mixed = make_plan(VLLM, MEGATRON, TRAINS_ON_GPUS)
    assert preload_for(mixed, EVERYBODY) == preload_for(mixed, TRAINS) == (PRELOAD,)
    assert preload_for(mixed, GENERATES) == (PRELOAD, LIBRARIES["VLLM"])


def test_what_is_imported_is_there() -> None:
    assert all(find_spec(module) for module in (PRELOAD, *LIBRARIES.values()))
