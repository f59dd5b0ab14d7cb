"""Under which names parts of tensors go, who keeps them, and how they are put together again."""

import pytest
import torch

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.tests.builders import make_plan
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.errors import BadData
from rljob_worker.weights.slices import kept_by, ranks_of, sent_parts, slices_of, tensor_name, whole_tensors

FOUR = WeightSlices(tensor=4, heads=4, key_heads=2)
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
POLICY = {
    f"{ATTENTION}.k_proj.weight": (4, 3),
    f"{ATTENTION}.qkv_proj.weight": (16, 3),
    f"{MLP}.gate_up_proj.weight": (16, 3),
    f"{MLP}.down_proj.weight": (3, 8),
    f"{MLP}.up_proj.bias": (8,),
    "model.norm.weight": (3,),
    "lm_head.weight": (130, 3),
}


def policy():
    numbers = iter(range(10_000))
    return {
        name: torch.tensor([float(next(numbers)) for _ in range(torch.Size(shape).numel())]).view(shape)
        for name, shape in POLICY.items()
    }


def names(name, shape, slices=FOUR):
    return [sent for sent, _ in sent_parts([(name, torch.zeros(shape))], slices)]


def test_a_part_goes_by_its_tensor_its_ranks_and_the_length_of_what_is_cut():
    keys, down = f"{ATTENTION}.k_proj.weight", f"{MLP}.down_proj.weight"
    assert names(keys, (4, 3)) == [f"{keys}@0-1of4", f"{keys}@2-3of4"]
    assert names(down, (3, 8)) == [f"{down}@{rank}-{rank}of8" for rank in range(4)]
    assert names("model.norm.weight", (3,)) == ["model.norm.weight"]
    assert names(keys, (4, 3), WeightSlices()) == [keys]


def test_ranks_keep_what_goes_by_their_number_whole_or_as_changes():
    assert [kept_by(rank)("w@2-3of8") for rank in range(5)] == [False, False, True, True, False]
    assert [kept_by(rank)("w@2-3of8:7:places") for rank in range(3)] == [False, False, True]
    assert kept_by(9)("w") and kept_by(9)("w:7:values")
    assert (ranks_of("w@2-3of8:7:places", 9), ranks_of("w", 3)) == (range(2, 4), range(3))
    assert (tensor_name("w@2-3of8"), tensor_name("w")) == ("w", "w")


def test_parts_hold_the_numbers_of_their_rank():
    down = torch.arange(24.0).view(3, 8)
    parts = dict(sent_parts([(f"{MLP}.down_proj.weight", down)], FOUR))
    assert parts[f"{MLP}.down_proj.weight@1-1of8"].tolist() == [[2, 3], [10, 11], [18, 19]]


@pytest.mark.parametrize("now", [1, 2, 4])
def test_a_version_that_was_sent_to_four_ranks_is_put_together_for_any_number(now, tmp_path):
    sent = list(sent_parts(policy().items(), slices_of_job(tmp_path, 4)))
    result = dict(whole_tensors(sent, slices_of_job(tmp_path, now)))
    assert_same(result, policy())


def test_a_version_of_the_engine_of_vllm_is_put_together_for_the_one_of_transformers(tmp_path):
    sent = list(sent_parts(policy().items(), slices_of_job(tmp_path, 2)))
    result = dict(whole_tensors(sent, slices_of_job(tmp_path, 1, engine="Transformers")))
    assert_same(result, policy())


def slices_of_job(directory, tensor, engine="VLLM"):
    """What workers of a job with a model of the shape of `FOUR` have."""
    path = write_config(directory, num_attention_heads=4, num_key_value_heads=2)
    (slices,) = slices_of(
        make_plan(
            f"models.0.path={path}",
            f"rollout.engine={engine}",
            f"rollout.parallelism.tensor={tensor}",
            "workerGroups=[{name: all, accelerator: {profile: nvidia, count: 4}}]",
        )
    ).values()
    assert slices.tensor == tensor
    return slices


def assert_same(result, wanted):
    assert list(result) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(result[name], tensor), name


@pytest.mark.parametrize("slices", [FOUR, WeightSlices()], ids=["a part is lost", "a family that is not known"])
def test_a_tensor_that_cannot_be_put_together_ends_the_job_by_name(slices):
    name = f"{MLP}.down_proj.weight"
    sent = [item for item in sent_parts([(name, torch.zeros(3, 8))], FOUR) if "@2" not in item[0]]
    with pytest.raises(BadData, match=rf"{name}, .* 3 of \d parts are there; set checkpoint.versions: Redraw"):
        list(whole_tensors(sent, slices))
