"""What is imported once for the workers of a pod."""

from importlib.util import find_spec
from pathlib import Path

from rljob_api.tests.builders import make_plan
from rljob_worker.launcher.pod import PodIdentity, pod_from
from rljob_worker.launcher.preloading import MEGATRON, PRELOAD, preload_for

VLLM = "rljob_worker.runtime.preload_vllm"


def test_libraries_are_imported_for_those_who_use_them() -> None:
    assert preload_for({"cpu"}, {"FSDP", "Transformers"}) == (PRELOAD,)
    assert preload_for({"cpu"}, {"FSDP", "VLLM"}) == (PRELOAD, VLLM)
    assert preload_for({"cpu"}, {"VLLM", "Megatron"}) == (PRELOAD, MEGATRON, VLLM)


def test_no_fork_that_has_a_device_is_of_a_process_that_imported_them() -> None:
    assert preload_for({"cuda"}, {"VLLM"}) == preload_for({"cpu", "cuda"}, {"VLLM", "Megatron"}) == (PRELOAD,)


def test_a_pod_reads_its_own_group_in_the_plan(tmp_path: Path) -> None:
    on_gpus = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 2}}, {name: rollout}]"
    plan = make_plan("rollout.engine=VLLM", "training.engine=Megatron", on_gpus)
    (tmp_path / "plan.json").write_text(plan.canonical_json())

    def pod_of(group: str) -> PodIdentity:
        reported = {"GROUP": group, "HOST_INDEX": "0", "ATTEMPT": "1", "PLAN": str(tmp_path / "plan.json")}
        return pod_from({f"RLJOB_{name}": value for name, value in reported.items()})

    trains, generates = pod_of("train"), pod_of("rollout")
    assert (trains.num_workers, trains.device, trains.preload) == (2, "cuda", (PRELOAD,))
    assert (generates.num_workers, generates.device) == (1, "cpu")
    assert generates.preload == (PRELOAD, VLLM)


def test_what_is_imported_is_there() -> None:
    assert all(find_spec(module) for module in (PRELOAD, MEGATRON, VLLM))
