"""What is changed so that a job fits, in which order, and what is said when nothing helps."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.costs.training_time import training_seconds
from rljob_api.planning.fitting import fit
from rljob_api.planning.memory.limits import AXIS_BYTES, DEVICE_BYTES, FRAGMENTED, memory_problems
from rljob_api.planning.memory.tests.test_workers import gpus
from rljob_api.planning.planner import draft, plan
from rljob_api.tests.builders import make_job
from rljob_api.vocabulary.problem import InvalidJobError

SHAPES = {"models/tiny": parse_shape(QWEN3_8B)}


def fitted(*overrides):
    return fit(make_job("data.batchSize=32", "dataBuffer.memory=16Gi", *overrides), SHAPES)


def test_a_job_that_fits_is_left_as_it_is_unless_another_way_is_faster():
    as_it_is = fitted(gpus(1, count=4))
    assert as_it_is.changes == {} and as_it_is.seconds == as_it_is.seconds_as_written
    # activations of 16,384 tokens have no room and are computed again; those of 4,096 are kept
    again = fitted(gpus(1), "data.maxPromptTokens=4000")
    assert again.changes == {"training.tokensPerMicroBatch": "4096"}
    assert again.seconds_as_written is not None and again.seconds * 1.2 < again.seconds_as_written


KEPT = "training.memory.activationCheckpointing=None"


def test_micro_batches_are_made_smaller_where_one_worker_has_no_other_way():
    medium = (gpus(1, count=1), "data.maxPromptTokens=4000", "training.parallelism.replicate=1", KEPT)
    roomy = DEFAULT | {"nvidia-h100": DEFAULT["nvidia-h100"].model_copy(update={"memory": "320Gi"})}

    def overrides(tokens):
        job = make_job("data.batchSize=32", "dataBuffer.memory=16Gi", *medium, f"training.tokensPerMicroBatch={tokens}")
        return fit(job, SHAPES, roomy).overrides

    assert overrides(65536) == ("training.tokensPerMicroBatch=16384",)  # the largest half of a half that fits
    assert overrides(32768) == ("training.tokensPerMicroBatch=16384",)
    assert overrides(16384) == ()


LONG = ("data.maxPromptTokens=32000", "training.tokensPerMicroBatch=32768")


def test_rows_too_long_for_one_worker_are_shared_or_computed_again():
    # keys and values of four workers' tokens take less time than computing all activations once more
    result = fitted(gpus(4), *LONG, KEPT)
    assert result.changes["training.parallelism.context"] == "4"
    assert "training.memory.activationCheckpointing" not in result.changes
    alone = fitted(gpus(1, count=1), "data.maxPromptTokens=8000", "training.precision=BFloat16", KEPT)
    assert alone.changes["training.memory.activationCheckpointing"] == "Full"


@pytest.mark.slow
def test_rows_too_long_for_several_workers_are_shared_and_computed_again():
    longest = fitted(gpus(4), *LONG, "data.maxPromptTokens=400000", KEPT)
    assert set(longest.changes) >= {"training.memory.activationCheckpointing", "training.parallelism.context"}
    assert plan(longest.job, shapes=SHAPES).memory


def test_a_job_that_leaves_activations_to_the_plan_gets_no_advice_on_them():
    result = fitted(gpus(4), *LONG)
    assert result.seconds_as_written is not None and "training.memory.activationCheckpointing" not in result.changes
    # a row of 64,032 tokens alone: activations computed again, and shared by two workers
    result = fitted(gpus(4), *LONG, "data.maxPromptTokens=400000")
    assert "training.memory.activationCheckpointing" not in result.changes and result.changes


def test_an_optimizer_waits_on_the_host_before_parameters_do():
    # on two, half of 12 bytes of each parameter and of 4 more of gradients, and 2 that generate: 76 GiB of 79.6
    # on one, weights and gradients in 4 bytes, 2 that generate and 2 gathered: more than 80 without the optimizer
    result = fitted(gpus(1, count=2), "training.tokensPerMicroBatch=1024")
    assert result.overrides == ("training.memory.offload.optimizer=true",)
    result = fitted(gpus(1, count=1), "training.tokensPerMicroBatch=1024")
    assert result.overrides == (
        "training.memory.offload.optimizer=true",
        "training.memory.offload.parameters=true",
    )
    assert plan(result.job, shapes=SHAPES).memory


LIMITED = "{spec: {containers: [{name: worker, resources: {limits: {memory: 100Gi}}}]}}"


def test_what_nothing_makes_fit_is_refused_with_the_hosts_it_would_take():
    with pytest.raises(InvalidJobError, match="whatever is set in training, a worker of train needs") as caught:
        fitted(f"workerGroups=[{{name: train, template: {LIMITED}}}]")
    (problem,) = caught.value.problems
    assert problem.fix == "It would fit with replicas of groups: train 4."


SMALL_HOST = "{spec: {containers: [{name: worker, resources: {limits: {memory: 80Gi}}}]}}"


def test_a_host_that_lacks_memory_for_what_waits_there_is_counted_too():
    """What is offloaded has 80 GiB of a host, and each of its eight workers an eighth of them."""
    group = f"{{name: train, replicas: 1, accelerator: {{profile: nvidia-h100, count: 8}}, template: {SMALL_HOST}}}"
    with pytest.raises(InvalidJobError, match="wait in its host's memory") as caught:
        fitted(f"workerGroups=[{group}]", "training.memory.offload.parameters=true")
    (problem,) = caught.value.problems
    # 8.2 billion parameters, 16 bytes each and 12 of a copy that is written: 27 GiB for each of 8 workers, less than
    # 9.5 for each of 32
    assert problem.found == "" and problem.fix == "It would fit with replicas of groups: train 4."
    with pytest.raises(InvalidJobError) as caught:
        fitted(f"workerGroups=[{group.replace('80Gi', '4Gi')}]", "training.memory.offload.parameters=true")
    (problem,) = caught.value.problems
    assert problem.fix == "No number of hosts helps: raise the limit."


LARGE = {"models/tiny": replace(SHAPES["models/tiny"], layers=360)}  # 80 billion parameters


@pytest.mark.parametrize("engine", ["Transformers", "VLLM"])
def test_where_whoever_generates_has_the_whole_model_it_is_to_be_shared(engine):
    """More hosts are not proposed: on each of them there would be as much."""
    with pytest.raises(InvalidJobError) as caught:
        fit(make_job(gpus(2), "dataBuffer.memory=16Gi", "data.batchSize=32", f"rollout.engine={engine}"), LARGE)
    (problem,) = caught.value.problems
    assert problem.found == '"nvidia-h100"'
    library = {"Transformers": "rollout.engine: VLLM and ", "VLLM": ""}[engine]
    assert problem.fix == (
        "No number of hosts helps: share the model that generates between the accelerators of a pod "
        f"({library}rollout.parallelism.tensor)."
    )


def test_memory_that_nobody_knows_is_refused():
    with pytest.raises(InvalidJobError, match="nobody knows how large this model is, found .models/tiny"):
        fit(make_job(gpus(1)), {})
    with pytest.raises(InvalidJobError, match="nobody knows how much memory a worker of train has"):
        fit(make_job(), SHAPES)


@pytest.mark.parametrize(("profile", "fix"), [("cpu", "Set limits.memory of"), ("nvidia", "Name a profile that says")])
def test_a_worker_of_unknown_memory_is_told_where_to_say_it(profile, fix):
    group = f"workerGroups=[{{name: train, accelerator: {{profile: {profile}, count: 1}}}}]"
    with pytest.raises(InvalidJobError) as caught:
        fit(make_job(group), SHAPES)
    (problem,) = caught.value.problems
    assert problem.fix.startswith(fix)


SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 513,  # which no two workers can split
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}
ROOMY = "{spec: {containers: [{name: worker, resources: {limits: {memory: 1Ti}}}]}}"


def spread(mebibytes, config, *overrides):
    """What is changed so that each of two workers, which only train, has room in so much of its accelerator."""
    return on_two_workers(mebibytes, config, *overrides).changes


def on_two_workers(mebibytes, config, *overrides):
    beside = (DEVICE_BYTES + AXIS_BYTES) >> 20  # of a mesh with one axis
    memory = ceil((beside + mebibytes) / (1 - FRAGMENTED))
    device = DEFAULT["nvidia-h100"].model_copy(update={"memory": f"{memory}Mi"})
    groups = f"[{{name: train, accelerator: {{profile: nvidia-h100, count: 2}}}}, {{name: rollout, template: {ROOMY}}}]"
    job = make_job(
        f"workerGroups={groups}", "algorithm.kl.coefficient=0", "training.precision=Float32",
        "training.tokensPerMicroBatch=48", *overrides,
    )  # fmt: skip
    shapes = {"models/tiny": parse_shape(SMALL | config)}
    return fit(job, shapes, DEFAULT | {"nvidia-h100": device})


def test_matrices_are_split_where_layers_are_too_large_for_one():
    # 4 layers of 3 x 512 x 16,384 + 4 x 512 x 512 are 419 MB in 4 bytes. On two ranks half of weights and optimizer,
    # 629, three layers gathered, 315, and gradients, 419: 1.37 GB. Split: 210 four times. Activations are 0.6 MB of
    # each of 48 tokens, or half of it
    config = {"intermediate_size": 16_384}
    assert spread(1000, config) == {"training.parallelism.tensor": "2"}
    assert on_two_workers(1300, config).seconds_as_written is None
    assert on_two_workers(1500, config).seconds_as_written is not None


def test_sequences_are_shared_where_one_row_is_too_long_for_one():
    # a layer keeps 4 x 64 of norms, 5 x 64 of attention and 4 x 129 of the MLP, 1,092; with inputs of two and 6 x 64
    # around them 1,604 of 4 bytes, and logits of 100 words four times: 8 kB of each of 4,096 tokens are 33 MB
    config = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 129}
    row = ("data.maxPromptTokens=4", "rollout.maxResponseTokens=4092", "training.tokensPerMicroBatch=2048")
    more = ("training.memory.activationCheckpointing=Full", "dataBuffer.memory=1Gi")
    assert spread(25, config | {"num_hidden_layers": 2}, *row, *more) == {"training.parallelism.context": "2"}
    assert spread(40, config | {"num_hidden_layers": 2}, *row, *more) == {}


ROWS = ("data.maxPromptTokens=150000", "training.memory.activationCheckpointing=Full")


def test_of_layouts_that_fit_the_one_that_takes_least_time_is_chosen():
    # rows are too long for one worker; two that share sequences have room
    result = fitted(gpus(4), *ROWS)
    assert result.changes == {"training.parallelism.context": "2"}
    # over a slow network weights are gathered within each of four hosts
    slow = DEFAULT["nvidia-h100"].speed.model_copy(update={"network": 1e8})
    job = make_job("data.batchSize=32", "dataBuffer.memory=16Gi", gpus(4), *ROWS)
    device = DEFAULT["nvidia-h100"].model_copy(update={"speed": slow})
    apart = fit(job, SHAPES, DEFAULT | {"nvidia-h100": device})
    assert apart.changes == {"training.parallelism.context": "2", "training.parallelism.replicate": "4"}
    (mesh,) = plan(apart.job, shapes=SHAPES).meshes
    assert [axis.axis for axis in mesh.axes if axis.crosses_hosts] == ["rp"]
    assert apart.seconds > result.seconds


@pytest.mark.slow
@pytest.mark.parametrize("host", [4e10, 1e9])
def test_nothing_that_fits_takes_less_time_than_what_is_chosen(host):
    """All of eight workers' meshes, with whatever waits on the host and whatever is computed again."""
    device = DEFAULT["nvidia-h100"].model_copy(
        update={"memory": "40Gi", "speed": DEFAULT["nvidia-h100"].speed.model_copy(update={"host": host})}
    )
    profiles = DEFAULT | {"nvidia-h100": device}
    base = ("data.batchSize=32", "dataBuffer.memory=16Gi", gpus(1), "data.maxPromptTokens=16352", KEPT)
    chosen = fit(make_job(*base, "training.tokensPerMicroBatch=32768"), SHAPES, profiles)
    assert chosen.changes
    sizes = [(tensor, context) for tensor in (1, 2, 4, 8) for context in (1, 2, 4, 8) if tensor * context <= 8]
    times = []
    for (tensor, context), tokens, again, offload in product(
        sizes, (32768, 16384, 8192, 4096, 2048), ("None", "Full"), ("{}", "{optimizer: true}", "{parameters: true}")
    ):
        job = make_job(
            *base, f"training.parallelism={{tensor: {tensor}, context: {context}}}",
            f"training.memory={{activationCheckpointing: {again}, offload: {offload}}}",
            f"training.tokensPerMicroBatch={tokens}",
        )  # fmt: skip
        result, limits = draft(job, profiles, SHAPES)
        if not list(memory_problems(result, limits)):
            times.append(training_seconds(result, SHAPES, {"train": device.speed}))
    assert len(times) > 20
    assert chosen.seconds <= min(times)


def test_replicas_that_have_no_room_are_made_fewer():
    # 8 billion parameters of 12 bytes, and 2 more to compute with
    changes = fitted(gpus(4), "training.parallelism.replicate=32", "training.tokensPerMicroBatch=4096").changes
    assert changes["training.parallelism.replicate"] == "4"


def test_experts_are_shared_where_they_are_too_many_for_one():
    # 4 layers of 4 experts of 3 x 512 x 4,096 are 403 MB, and 17 beside them. Half of weights and optimizer, 630, three
    # layers gathered, 315, and gradients, 420; or of the latter two what is beside and half of the experts: 164 and
    # 218, and buffers of a second axis, 268: 1,365 or 1,280 MB
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}
    assert spread(1250, experts) == {"training.parallelism.expert": "2"}
    assert on_two_workers(1250, experts).seconds_as_written is None
    assert on_two_workers(1500, experts).seconds_as_written is not None


def test_layers_are_put_into_stages_where_what_is_around_them_is_too_large_for_one():
    # embedding and last layer of 51,200 x 512 are 105 MB each, two layers 15 MB. Half of weights and optimizer, 337,
    # gathered 254, gradients 224, and logits with the gradient of the last layer 144: 959 MB, of which the sharing of
    # sequences saves a few and the splitting of matrices, which makes one copy of two, nothing. A stage has one of the
    # two and a layer, 112 MB, four times, and the last one logits
    config = {"vocab_size": 51_200, "intermediate_size": 512, "num_hidden_layers": 2}
    assert spread(700, config, "training.engine=Megatron") == {"training.parallelism.pipeline": "2"}
    assert "training.parallelism.pipeline" not in spread(700, config)  # which FSDP has none of
    # one that is both is on both stages, which then have no less of it
    tied = spread(500, config | {"tie_word_embeddings": True}, "training.engine=Megatron")
    assert tied and "training.parallelism.pipeline" not in tied


@settings(max_examples=4)
@given(
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 4]),
    st.sampled_from([2048, 65536]),
    st.sampled_from(["None", "Full", "Auto"]),
    st.sampled_from(["Float32", "Int8"]),
)
def test_what_is_proposed_fits_as_it_is(count, replicas, tokens, checkpointing, states):
    overrides = (
        gpus(replicas, count), "data.maxPromptTokens=16000", f"training.tokensPerMicroBatch={tokens}",
        f"training.memory.activationCheckpointing={checkpointing}", f"training.optimizer.states={states}",
    )  # fmt: skip
    result = fitted(*overrides)
    again = fitted(*overrides, *result.overrides)
    assert again.changes == {}
    assert again.job.spec.training == result.job.spec.training
