"""Tests of spreading a model over the ranks of a mesh."""

from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import FAMILIES, parse_shape
from rljob_api.pipeline.meshes import Mesh, context_way
from rljob_api.planning import planner
from rljob_api.planning.parallelism_problems import parallelism_problems, split_sizes, tensor_sizes
from rljob_api.planning.tests.configs import DENSE
from rljob_api.tests.builders import make_job, make_plan
from rljob_api.vocabulary.problem import InvalidJobError

CONFIG = DENSE | {"num_attention_heads": 12, "num_key_value_heads": 4}
SHAPE = parse_shape(CONFIG)
assert SHAPE is not None
PAIRS = (
    "rollout={engine: VLLM, parallelism: {tensor: 2}}",
    "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]",
)


def engine(kind, mesh):
    """An engine of a kind, with the model models/tiny."""
    of_kind = next(item for item in make_plan().engines if item.kind == kind)
    return of_kind.model_copy(update={"path": "models/tiny", "mesh": mesh})


@pytest.mark.parametrize(
    ("key_heads", "mesh", "way"),
    [
        (4, Mesh(cp=4), "Heads"),
        (4, Mesh(cp=8), "Ring"),  # half a key head for each
        (4, Mesh(cp=3), "Ring"),
        (4, Mesh(tp=2, cp=2), "Heads"),
        (4, Mesh(tp=2, cp=4), "Ring"),  # two key heads for four ranks that split matrices alike
        (1, Mesh(tp=4), "Heads"),  # nobody shares sequences
    ],
)
def test_keys_go_round_where_workers_cannot_share_whole_heads(key_heads, mesh, way):
    assert context_way(key_heads, mesh) == way


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


def test_matrices_that_do_not_split_are_refused():
    (result,) = parallelism_problems(engine("Train", Mesh(tp=3)), SHAPE)
    assert result.path == "spec.training.parallelism.tensor" and result.fix == "Write one of 1, 2, 4."


@pytest.mark.parametrize(
    ("intermediate", "tensor", "fits"),
    # 4 heads of 32 are 128 numbers: two blocks of 64, and four halves; 192 are three; 100 have no blocks anywhere
    [(192, 1, []), (256, 2, []), (100, 2, []), (192, 2, ["1"]), (256, 4, ["1, 2"])],
)
def test_means_in_int8_have_whole_blocks_on_every_worker(intermediate, tensor, fits):
    shape = replace(SHAPE, heads=4, key_heads=4, head_dim=32, intermediate=intermediate)
    trained = engine("Train", Mesh(tp=tensor)).model_copy(update={"trainable": True})
    result = list(parallelism_problems(trained, shape, "Int8"))
    sizes = [item.fix.partition("one of ")[2].partition(" for training.parallelism.tensor")[0] for item in result]
    assert sizes == fits and not list(parallelism_problems(trained, shape, "BFloat16"))


def test_what_is_asked_beside_what_is_trained_does_not_hide_its_means():
    shape = replace(SHAPE, heads=4, key_heads=4, head_dim=32, intermediate=192)
    job = make_job("training={optimizer: {states: Int8}, parallelism: {tensor: 2}}", PAIRS[1])
    with pytest.raises(InvalidJobError, match="blocks of 64, of which workers that split them in 2 do not get whole"):
        planner.plan(job, shapes={model.path: shape for model in job.spec.models})


GPT_2 = {"model_type": "gpt2", "vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}


@pytest.mark.parametrize("config", [{**CONFIG, "model_type": "phi3"}, GPT_2], ids=["phi3", "gpt2"])
def test_families_with_fused_matrices_are_refused_with_those_that_split(config):
    shape = parse_shape(config)
    (result,) = parallelism_problems(engine("Train", Mesh(tp=2)), shape)
    assert result.path == "spec.training.parallelism.tensor"
    assert "queries, keys and values in one matrix" in result.message
    can = result.fix.partition("train one of ")[2].rstrip(".").split(", ")
    assert sorted(can) == sorted(
        name for name, family in FAMILIES.items() if split_sizes(replace(SHAPE, family=family)) != (1,)
    )
    assert "qwen3" in can and config["model_type"] not in can
    assert list(parallelism_problems(engine("Train", Mesh(cp=2)), shape)) == []


@pytest.mark.parametrize("size", [2, 3, 5, 24])
def test_any_number_of_workers_share_sequences(size):
    assert list(parallelism_problems(engine("Train", Mesh(dp=2, cp=size)), SHAPE)) == []


def test_the_plan_refuses_each_model_once_where_its_config_is_at_hand():
    job = make_job("workerGroups=[{name: train, replicas: 3}]", "training.parallelism.tensor=3", "data.batchSize=6")
    paths = {model.path for model in job.spec.models}
    with pytest.raises(InvalidJobError) as refused:
        planner.plan(job, shapes=dict.fromkeys(paths, SHAPE))
    assert [problem.path for problem in refused.value.problems] == ["spec.training.parallelism.tensor"] * len(paths)
    assert planner.plan(job).engines


@pytest.mark.parametrize(
    ("heads", "key_heads", "intermediate", "words", "sizes"),
    [
        (32, 8, 12288, 128, (1, 2, 4, 8, 16, 32)),  # on 16 two workers have the same key head
        (24, 8, 12288, 190, (1, 2, 4, 8, 24)),  # 12 would cut key heads: 8 / 12
        (24, 8, 12288, 128, (1, 2, 4, 8)),  # nor can 24 share 128 words; 190 are counted as 192
        (4, 4, 90, 128, (1, 2)),  # four cannot share 90 columns
    ],
)
def test_workers_that_generate_share_heads_the_mlp_and_words(heads, key_heads, intermediate, words, sizes):
    shape = replace(SHAPE, heads=heads, key_heads=key_heads, intermediate=intermediate, vocabulary=words)
    assert tensor_sizes(shape) == sizes


def test_a_model_that_cannot_generate_on_so_many_says_why():
    (result,) = parallelism_problems(engine("Rollout", Mesh(tp=3)), SHAPE)
    assert result.path == "spec.rollout.parallelism.tensor"
    shared = (
        "12 attention heads and 4 key heads, the MLP's 128 columns, and 128 words (counted up to a multiple of 64),"
    )
    assert f"{shared} of models/tiny" in result.message
    assert result.fix == "Write one of 1, 2, 4."
    paths = {model.path for model in make_job().spec.models}
    with pytest.raises(InvalidJobError) as refused:
        planner.plan(make_job(*PAIRS), shapes=dict.fromkeys(paths, replace(SHAPE, heads=5, key_heads=5)))
    assert {problem.path for problem in refused.value.problems} == {"spec.rollout.parallelism.tensor"}


def test_a_copy_that_generates_is_workers_of_a_pod():
    made = planner.plan(make_job(*PAIRS))
    meshes = {item.kind: (item.mesh.dp, item.mesh.tp) for item in made.engines}
    assert meshes == {"Rollout": (1, 2), "Train": (2, 1)}


EXPERTS = parse_shape(
    {**CONFIG, "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
)


@pytest.mark.parametrize(("dense", "sizes"), [((), (1, 2, 3, 6)), ((1,), (1, 2))])
def test_workers_that_generate_share_every_expert(dense, sizes):
    """12 heads, 6 key heads, 192 words and 18 columns of an expert; where layers have an MLP all the same, its 128
    columns."""
    experts = replace(EXPERTS.experts, width=18, dense=dense)
    assert tensor_sizes(replace(EXPERTS, key_heads=6, experts=experts, vocabulary=192)) == sizes


def test_experts_that_are_too_narrow_to_be_shared_say_so():
    (result,) = parallelism_problems(
        engine("Rollout", Mesh(tp=4)), replace(EXPERTS, experts=replace(EXPERTS.experts, width=18))
    )
    assert "4 key heads, an expert's 18 columns, and 128 words" in result.message
    assert result.fix == "Write one of 1, 2."


@pytest.mark.parametrize("size", [2, 3, 6])
def test_workers_share_whole_experts(size):
    assert list(parallelism_problems(engine("Train", Mesh(dp=6, ep=size)), EXPERTS)) == []


def test_experts_that_cannot_be_shared_are_refused():
    (result,) = parallelism_problems(engine("Train", Mesh(dp=4, ep=4)), EXPERTS)
    assert result.path == "spec.training.parallelism.expert" and "share the 6 experts of a layer" in result.message
    assert result.fix == "Write one of 1, 2, 3, 6."
    (result,) = parallelism_problems(engine("Train", Mesh(dp=4, ep=2)), SHAPE)
    assert result.found == "2" and "models/tiny has no experts to share" in result.message


def test_expert_parallelism_needs_workers_in_equal_runs():
    with pytest.raises(InvalidJobError) as caught:
        make_job("training.parallelism.expert=4", "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]")
    (result,) = caught.value.problems
    assert result.path == "spec.training.parallelism.expert" and result.fix == "Write a divisor of 2."


def test_experts_are_shared_by_workers_of_one_stage():
    pod = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 4}}]"
    staged = ("training.engine=Megatron", "training.parallelism.pipeline=2", pod)
    assert planner.plan(make_job(*staged, "training.parallelism.expert=2")).engines
    with pytest.raises(InvalidJobError) as caught:
        make_job(*staged, "training.parallelism.expert=4")
    (result,) = caught.value.problems
    assert "the 2 workers of group train that have a pipeline stage" in result.message
    assert result.fix == "Write a divisor of 2."


def test_megatron_says_which_families_it_knows():
    trained = engine("Train", Mesh()).model_copy(update={"library": "Megatron"})
    assert list(parallelism_problems(trained, SHAPE)) == []
    other = parse_shape(CONFIG | {"model_type": "gemma2"})
    (result,) = parallelism_problems(trained, other)
    assert result.path == "spec.training.engine" and result.fix == "Write FSDP."
    assert result.message.endswith("of models/tiny; it knows llama, qwen2, qwen3, qwen3_moe")


@pytest.mark.parametrize("bias", ["output_bias", "mlp_bias"])
def test_megatron_has_no_layers_that_end_in_biases(bias):
    trained = engine("Train", Mesh()).model_copy(update={"library": "Megatron"})
    family = replace(SHAPE.family, megatron=True)
    assert list(parallelism_problems(trained, replace(SHAPE, family=replace(family, query_bias=True)))) == []
    (result,) = parallelism_problems(trained, replace(SHAPE, family=replace(family, **{bias: True})))
    assert result.path == "spec.training.engine" and "end in biases" in result.message


def test_stages_without_layers_are_refused():
    trained = engine("Train", Mesh(pp=3)).model_copy(update={"library": "Megatron"})
    (result,) = parallelism_problems(trained, SHAPE)
    assert (result.path, result.found) == ("spec.training.parallelism.pipeline", "3")
    assert "of the 2 layers of models/tiny leave some without any" in result.message
    assert result.fix == "Write at most 2."


@pytest.mark.parametrize(
    ("shape", "mesh"),
    [(SHAPE, Mesh(pp=2, tp=2)), (replace(SHAPE, tied=True), Mesh(pp=2)), (EXPERTS, Mesh(dp=2, pp=2, ep=2))],
)
def test_stages_of_layers_each(shape, mesh):
    trained = engine("Train", mesh).model_copy(update={"library": "Megatron"})
    assert list(parallelism_problems(trained, shape)) == []
