from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning import planner
from rljob_api.planning.spreading import context_sizes, split_sizes, spreading_problems, tensor_sizes
from rljob_api.tests.builders import make_job, make_plan
from rljob_api.vocabulary.problem import InvalidJobError

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}
SHAPE = parse_shape(CONFIG)
assert SHAPE is not None
PAIRS = (
    "rollout={engine: VLLM, parallelism: {tensor: 2}}",
    "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]",
)


def engine(kind, mesh):
    """Of a kind, of models/tiny."""
    of_kind = next(each for each in make_plan().engines if each.kind == kind)
    return of_kind.model_copy(update={"path": "models/tiny", "mesh": mesh})


@pytest.mark.parametrize(
    ("heads", "key_heads", "sizes"),
    [
        (12, 4, (1, 2, 4, 12)),  # 3 and 6 divide the heads, and would cut a key head: 4 / 3, 6 / 4
        (6, 3, (1, 3, 6)),
        (8, 8, (1, 2, 4, 8)),
        (8, 1, (1, 2, 4, 8)),
        (7, 1, (1, 7)),
    ],
)
def test_workers_share_whole_heads(heads, key_heads, sizes):
    assert context_sizes(replace(SHAPE, heads=heads, key_heads=key_heads)) == sizes


@pytest.mark.parametrize(
    ("heads", "key_heads", "intermediate", "sizes"),
    [
        (12, 4, 128, (1, 2, 4)),  # 3, 6 and 12 divide the heads, and not the key heads
        (8, 8, 100, (1, 2, 4)),  # 8 does not divide 100
        (8, 1, 128, (1,)),
        (6, 3, 96, (1, 3)),
    ],
)
def test_workers_split_matrices_between_heads(heads, key_heads, intermediate, sizes):
    assert split_sizes(replace(SHAPE, heads=heads, key_heads=key_heads, intermediate=intermediate)) == sizes


def test_workers_share_the_heads_that_split_matrices_leave_each():
    # 12 heads and 4 key heads on 2 ranks are 6 and 2: by 2 as they are, by 6 with each key head for three
    assert context_sizes(SHAPE, 2) == (1, 2, 6)
    assert context_sizes(SHAPE, 4) == (1, 3)
    assert list(spreading_problems(engine("Train", Mesh(tp=2, cp=2)), SHAPE)) == []
    (found,) = spreading_problems(engine("Train", Mesh(tp=2, cp=4)), SHAPE)
    assert found.path == "spec.training.parallelism.context"
    assert "share 1 of 2 parts of the 12 attention heads" in found.message and found.fix == "Write one of 1, 2, 6."


def test_matrices_that_do_not_split_are_refused():
    (found,) = spreading_problems(engine("Train", Mesh(tp=3)), SHAPE)
    assert found.path == "spec.training.parallelism.tensor" and found.fix == "Write one of 1, 2, 4."
    fused = replace(SHAPE, family=replace(SHAPE.family, fused=True))
    (found,) = spreading_problems(engine("Train", Mesh(tp=2)), fused)
    assert "queries, keys and values in one matrix" in found.message
    assert list(spreading_problems(engine("Train", Mesh(cp=2)), fused)) == []


def test_a_size_that_cuts_heads_is_refused_with_those_that_do_not():
    (found,) = spreading_problems(engine("Train", Mesh(dp=2, cp=3)), SHAPE)
    assert found.path == "spec.training.parallelism.context"
    assert "12 attention heads and 4 key heads of models/tiny" in found.message
    assert found.fix == "Write one of 1, 2, 4, 12."
    assert list(spreading_problems(engine("Train", Mesh(dp=2, cp=4)), SHAPE)) == []


def test_the_plan_refuses_each_model_once_where_its_config_is_at_hand():
    job = make_job("workerGroups=[{name: train, replicas: 3}]", "training.parallelism.context=3", "data.batchSize=6")
    paths = {model.path for model in job.spec.models}
    with pytest.raises(InvalidJobError) as refused:
        planner.plan(job, shapes=dict.fromkeys(paths, SHAPE))
    assert [each.path for each in refused.value.problems] == ["spec.training.parallelism.context"] * len(paths)
    assert planner.plan(job).engines


@pytest.mark.parametrize(
    ("heads", "key_heads", "intermediate", "sizes"),
    [
        (32, 8, 12288, (1, 2, 4, 8, 16, 32)),  # on 16 two workers have the same key head
        (24, 8, 12288, (1, 2, 4, 8, 24)),  # 12 would cut key heads: 8 / 12
        (4, 4, 90, (1, 2)),  # four cannot share 90 columns
    ],
)
def test_workers_that_generate_share_heads_and_the_mlp(heads, key_heads, intermediate, sizes):
    assert tensor_sizes(replace(SHAPE, heads=heads, key_heads=key_heads, intermediate=intermediate)) == sizes


def test_a_model_that_cannot_generate_on_so_many_says_why():
    (found,) = spreading_problems(engine("Rollout", Mesh(tp=3)), SHAPE)
    assert found.path == "spec.rollout.parallelism.tensor"
    assert "12 attention heads and 4 key heads, and the MLP's 128 columns, of models/tiny" in found.message
    assert found.fix == "Write one of 1, 2, 4."
    paths = {model.path for model in make_job().spec.models}
    with pytest.raises(InvalidJobError) as refused:
        planner.plan(make_job(*PAIRS), shapes=dict.fromkeys(paths, replace(SHAPE, heads=5, key_heads=5)))
    assert {each.path for each in refused.value.problems} == {"spec.rollout.parallelism.tensor"}


def test_a_copy_that_generates_is_workers_of_a_pod():
    made = planner.plan(make_job(*PAIRS))
    meshes = {each.kind: (each.mesh.dp, each.mesh.tp) for each in made.engines}
    assert meshes == {"Rollout": (1, 2), "Train": (2, 1)}


EXPERTS = parse_shape(
    {**CONFIG, "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_workers_share_whole_experts(size):
    assert list(spreading_problems(engine("Train", Mesh(dp=6, ep=size)), EXPERTS)) == []


def test_experts_that_cannot_be_shared_are_refused():
    (found,) = spreading_problems(engine("Train", Mesh(dp=4, ep=4)), EXPERTS)
    assert found.path == "spec.training.parallelism.expert" and "share the 6 experts of a layer" in found.message
    assert found.fix == "Write one of 1, 2, 3, 6."
    (found,) = spreading_problems(engine("Train", Mesh(dp=4, ep=2)), SHAPE)
    assert found.found == "2" and "models/tiny has no experts to share" in found.message


def test_expert_parallelism_needs_workers_in_equal_runs():
    with pytest.raises(InvalidJobError) as caught:
        make_job("training.parallelism.expert=4", "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]")
    (found,) = caught.value.problems
    assert found.path == "spec.training.parallelism.expert" and found.fix == "Write a divisor of 2."


def test_megatron_says_which_families_it_knows():
    trained = engine("Train", Mesh()).model_copy(update={"library": "Megatron"})
    assert list(spreading_problems(trained, SHAPE)) == []
    other = parse_shape(CONFIG | {"model_type": "gemma2"})
    (found,) = spreading_problems(trained, other)
    assert found.path == "spec.training.engine" and found.fix == "Write FSDP."
    assert found.message.endswith("of models/tiny; it knows llama, qwen2, qwen3, qwen3_moe")
