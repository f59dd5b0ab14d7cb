"""Tests of the planned memory of workers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.pictures import picture_memory
from rljob_api.memory.sizes import PREFILL_TOKENS
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.memory.video_encoder import VideoEncoderShape
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.memory.layouts import parallel_layout
from rljob_api.planning.memory.workers import memory_of
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import PPO, TWO_GROUPS, make_job
from rljob_api.v1alpha1.data import VisionSpec
from rljob_api.vocabulary.problem import InvalidJobError

TINY = QWEN3_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "head_dim": 8,
}
LITTLE = "training.tokensPerMicroBatch=2048"


def planned(config, *overrides):
    return plan(make_job(*overrides), shapes={"models/tiny": parse_shape(config)})


def phases(config, *overrides, group="train"):
    result = next(item for item in planned(config, *overrides).memory if item.group == group)
    return {phase.phase: phase for phase in result.phases}


def gpus(replicas, count=8):
    return (
        f"workerGroups=[{{name: train, replicas: {replicas}, accelerator: {{profile: nvidia-h100, count: {count}}}}}]"
    )


def test_a_model_without_its_config_at_hand_is_said_to_be_unknown():
    (group,) = plan(make_job()).memory
    assert group.unknown == ("models/tiny",) and group.phases == ()


def test_weights_and_optimizer_are_divided_over_workers():
    result = phases(QWEN3_8B, gpus(1), "algorithm.kl.coefficient=0", "data.batchSize=8")
    parameters = 8_190_735_360
    # in BFloat16 masters of 4 bytes and two states of 4, an eighth of each, and a whole copy of 2 bytes that generates
    assert result["train"].optimizer == parameters
    assert result["load"].weights == parameters // 2 + 2 * parameters
    # gradients: an eighth of 4 bytes each, and two layers on their way
    assert result["train"].gradients == parameters // 2 + 2 * 4 * 192_946_432


def test_replicas_have_everything_once_each():
    job = ("algorithm.kl.coefficient=0", "data.batchSize=16")
    one, two = (phases(QWEN3_8B, gpus(2), *job, f"training.parallelism.replicate={n}") for n in (1, 2))
    on_8 = phases(QWEN3_8B, gpus(1), "algorithm.kl.coefficient=0", "data.batchSize=8")  # of 16 workers
    parameters = 8_190_735_360
    assert on_8["checkpoint"].host - two["checkpoint"].host == 12 * parameters // 16  # of which each writes half
    on_8["checkpoint"] = on_8["checkpoint"].model_copy(update={"host": two["checkpoint"].host})
    assert two == on_8
    assert (one["train"].optimizer, two["train"].optimizer) == (8 * parameters // 16, parameters)


def test_a_replica_of_one_worker_has_a_copy_of_weights_to_compute_with():
    pair = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]"
    alone, result = (phases(TINY, "algorithm.kl.coefficient=0", *more) for more in ((), replicated(pair)))
    # what generates on one worker has the weights of what trains; two that add up gradients keep theirs apart
    assert result["load"].weights == 2 * alone["load"].weights
    assert result["train"].optimizer == alone["train"].optimizer
    assert result["checkpoint"].checkpoint == alone["checkpoint"].checkpoint // 2  # of which each writes half


def replicated(workers):
    return (workers, "training.parallelism.replicate=2")


def test_a_job_without_memory_for_replicas_is_advised_to_have_fewer():
    with pytest.raises(InvalidJobError, match="Lower training.parallelism.replicate, or set training.memory.offload"):
        phases(QWEN3_8B, gpus(2, count=1), "data.batchSize=16", LITTLE, "training.parallelism.replicate=2")


def test_workers_that_split_matrices_keep_the_rest_whole():
    wide = ("algorithm.kl.coefficient=0", "data.batchSize=64", LITTLE, "data.maxPromptTokens=128")
    alone, split = (phases(QWEN3_8B, gpus(1), *wide, f"training.parallelism.tensor={size}") for size in (1, 2))
    # a layer has matrices of 192,937,984 and norms of 2 x 4096 + 2 x 128; beside the layers: 2 embeddings and a norm
    weights, norms, rest = 192_937_984, 8448, 2 * 151_936 * 4096 + 4096
    part = 36 * (weights // 2 + norms) + rest
    assert alone["train"].optimizer == 36 * (weights + norms) + rest  # 8 bytes over 8 ranks
    assert split["train"].optimizer == 2 * part  # over the 4 pairs of ranks
    assert split["train"].activations < 0.7 * alone["train"].activations


def test_workers_that_split_matrices_predict_a_part_of_the_tokens_each():
    pair = ("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]", "algorithm.kl.coefficient=0")
    alone, split = (phases(TINY, *pair, f"training.parallelism.tensor={size}")["train"] for size in (1, 2))
    # of one copy of 32 rows, 1,536 tokens, a half; of two of 16 all of their responses of 32 tokens
    assert split.logits - alone.logits == (768 - 16 * 32) * 100 * 4 * 4


def test_workers_that_share_sequences_have_a_part_of_their_tokens():
    long = (
        "algorithm.kl.coefficient=0",
        "data.batchSize=8",
        "rollout.maxResponseTokens=30720",
        "data.maxPromptTokens=2048",
    )
    alone, shared = (phases(TINY, gpus(1), *long, f"training.parallelism.context={size}") for size in (1, 4))
    # a row of 32,768 tokens goes alone, or in packs of 4 x 16,384: 16,384 of them on each of four workers
    assert alone["train"].activations == pytest.approx(2 * shared["train"].activations, rel=1e-4)
    assert shared["train"].optimizer == alone["train"].optimizer


def test_stages_have_their_layers_and_what_is_before_or_behind_them():
    alone = ("algorithm.kl.coefficient=0", "data.batchSize=8", LITTLE, "training.engine=Megatron")
    whole, staged = (phases(QWEN3_8B, gpus(1), *alone, f"training.parallelism.pipeline={n}") for n in (1, 2))
    # 18 layers, one of two embeddings of 151,936 x 4096, and behind the last one a norm; 8 bytes over 4 ranks
    last = 18 * 192_946_432 + 622_329_856 + 4096
    assert whole["train"].optimizer == 8_190_735_360 and staged["train"].optimizer == 2 * last
    # of the rest that is gathered to compute with, 2 bytes of one embedding less
    asleep = 2 * 8_190_735_360  # the copy that generates
    gathered = {
        job: phases["train"].weights - (phases["load"].weights - asleep)
        for job, phases in (("staged", staged), ("whole", whole))
    }
    assert gathered["staged"] == 2 * (622_329_856 + 4096 + 3 * 192_946_432)
    assert gathered["whole"] == 2 * (2 * 622_329_856 + 4096 + 3 * 192_946_432)


def test_the_first_stage_has_micro_batches_on_their_way_and_the_last_one_logits():
    rows = ("algorithm.kl.coefficient=0", "data.maxPromptTokens=4064", "dataBuffer.memory=1Gi")
    job = (*rows, "training.engine=Megatron", "training.tokensPerMicroBatch=4096", gpus(1, count=4))
    whole, staged = (phases(TINY_DEEP, *job, f"training.parallelism.pipeline={n}")["train"] for n in (1, 4))
    # 3 of 12 layers, of four micro-batches of a row each: what one has of all of them, and thrice what is around them
    around = (4 * 4096 + 2 * 128) * 4096 * 2
    assert staged.activations - whole.activations == 3 * around
    assert staged.logits == 0 < whole.logits
    words = phases(TINY | {"vocab_size": 32_000}, *job, "training.parallelism.pipeline=2")["train"]
    assert words.logits > 0  # where they are more than what is on its way


def test_a_stage_between_may_have_most_where_not_all_layers_have_experts():
    experts = {"model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    config = TINY | experts | {"num_hidden_layers": 3, "mlp_only_layers": [0, 2]}
    job = ("algorithm.kl.coefficient=0", "training.engine=Megatron", "training.parallelism.pipeline=3")
    pod = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 3}}]"
    # 64 experts of 3 x 64 x 512 numbers of 4 bytes, on the second of three stages; the rest is less than a hundredth
    optimizer = phases(config, *job, pod, "data.batchSize=6")["train"].optimizer
    assert optimizer == pytest.approx(2 * 64 * 3 * 64 * 512 * 4, rel=0.02)


def test_one_worker_in_float32_generates_with_the_weights_it_trains():
    result = phases(TINY, "algorithm.kl.coefficient=0")
    assert phases(TINY, "algorithm.kl.coefficient=0", "training.engine=Megatron")["load"].weights == (
        2 * result["load"].weights  # Megatron's layers are nobody else's
    )
    assert result["load"].weights * 2 == result["train"].optimizer
    assert phases(TINY)["load"].weights == 2 * result["load"].weights  # with a reference


def test_an_adapter_is_all_that_has_gradients_and_its_base_is_the_reference():
    result = phases(QWEN3_8B, gpus(1), "data.batchSize=8", "models.0.adapter={rank: 16}", LITTLE)
    # beside each layer: q, o (4096 + 4096), k, v (4096 + 1024), and three of 4096 + 12288
    adapter = 36 * 16 * (2 * 8192 + 2 * 5120 + 3 * 16384)
    assert result["train"].optimizer == 2 * adapter * 4 // 8
    # an eighth of the model in 2 bytes and of the adapter in 4, and the copy that generates; no reference
    assert result["load"].weights == 8_190_735_360 * 2 // 8 + adapter * 4 // 8 + 8_190_735_360 * 2
    # an eighth, and what two of the layers have of it on their way
    assert result["train"].gradients == adapter * 4 // 8 + 2 * 192_946_432 * adapter * 4 // 8_190_735_360


def test_a_critic_is_trained_beside_the_policy():
    assert phases(TINY, *PPO)["train"].optimizer > 1.9 * phases(TINY)["train"].optimizer


def test_who_generates_has_a_cache_and_who_trains_has_gradients():
    train, rollout = phases(TINY, *TWO_GROUPS), phases(TINY, *TWO_GROUPS, group="rollout")
    assert set(train) == {"load", "train", "sync", "checkpoint"} and set(rollout) == {"load", "generate", "sync"}
    # 32 rows on 4 workers: 8 rows x (16 + 32) columns x 2 layers x keys and values of 8 x 8 x 4 bytes
    assert rollout["generate"].cache == 8 * 48 * 2 * 2 * 64 * 4


def test_a_copy_that_generates_is_shared_by_its_workers():
    one_row = 48 * 2 * 2 * 8 * 4  # 16 + 32 columns of 2 layers, keys and values of one head of 8 numbers of 4 bytes
    pods = "{{name: rollout, replicas: {}, accelerator: {{profile: nvidia-h100, count: 2}}}}"
    job = ("rollout.engine=VLLM", "training.precision=Float32", "rollout.parallelism.tensor=2")
    for replicas, rows in ((1, 32), (4, 8)):
        groups = f"workerGroups=[{{name: train, replicas: 1}}, {pods.format(replicas)}]"
        result = phases(TINY | {"num_key_value_heads": 2}, *job, groups, group="rollout")
        assert result["generate"].cache == rows * one_row
        alone = phases(TINY | {"num_key_value_heads": 2}, *job[:2], groups, group="rollout")
        assert 2 * result["load"].weights == alone["load"].weights > 0


CPUS = "workerGroups=[{name: train, accelerator: {count: 4}}]"


def test_steps_go_on_beside_the_copy_of_a_checkpoint_that_is_written():
    last, often = (phases(TINY, CPUS, f"checkpoint.everySteps={steps}") for steps in (10, 2))  # of 10 steps
    # a layer: query, key, value and output of 64 x (256 + 64 + 64 + 256), an MLP of 3 x 64 x 128, norms of
    # 2 x 64 + 2 x 8; twice that, 2 x 100 x 64 beside, and a norm: 144,224 of 4 bytes, three times, on 4 ranks
    parameters = 2 * (64 * 640 + 3 * 64 * 128 + 2 * 64 + 2 * 8) + 2 * 6400 + 64
    copy = 3 * 4 * parameters // 4
    assert {name: phase.checkpoint for name, phase in last.items()} == {
        "load": 0, "generate": 0, "train": 0, "sync": 0, "checkpoint": copy,
    }  # fmt: skip
    assert last["checkpoint"].peak == last["load"].peak + copy
    assert {name: often[name].peak - last[name].peak for name in last} == {
        "load": 0, "generate": copy, "train": copy, "sync": copy, "checkpoint": 0,
    }  # fmt: skip


def test_the_copy_of_an_adapter_is_that_of_its_own():
    result = phases(TINY, CPUS, "models.0.adapter={rank: 16}")
    # beside each layer: q, o (64 + 256), k, v (64 + 64), and three of 64 + 128
    assert result["checkpoint"].checkpoint == 3 * 4 * (2 * 16 * (2 * 320 + 2 * 128 + 3 * 192)) // 4


def test_accelerators_write_checkpoints_from_the_memory_of_their_host():
    last, often = (phases(QWEN3_8B, *ONE, f"checkpoint.everySteps={steps}") for steps in (10, 2))  # of 10 steps
    copy = 12 * NUMBERS // 8  # masters and two states of 4 bytes, an eighth of each
    # while it is taken the optimizer still sleeps, as new weights have just come to what generates
    assert last["checkpoint"].host == copy + NUMBERS and last["checkpoint"].checkpoint == 0
    assert {name: often[name].host - last[name].host for name in last} == {
        "load": 0, "generate": copy, "train": copy, "sync": copy, "checkpoint": 0,
    }  # fmt: skip
    assert [phase.peak for phase in last.values()] == [phase.peak for phase in often.values()]


def test_what_goes_as_changes_is_kept_where_it_comes_from_and_where_it_goes():
    groups = ("algorithm.kl.coefficient=0", "training.precision=Float32", *TWO_GROUPS)
    for group in ("train", "rollout"):
        whole, delta = (phases(TINY, *groups, *sent, group=group) for sent in ((), ("weightSync={delta: {}}",)))
        kept = 144_224 * 4  # all of it, which is one bucket: that of the first source
        assert {name: phase.delta for name, phase in delta.items()} == dict.fromkeys(delta, kept) | {"load": 0}
        assert {name: delta[name].peak - whole[name].peak for name in whole} == dict.fromkeys(whole, kept) | {"load": 0}


def test_workers_that_share_a_copy_keep_a_slice_each_of_what_goes_as_changes():
    """Of two layers on 2 ranks: half of 2 x 64 x 64 and 3 x 128 x 64, one of two heads of keys and values of 2 x 32 x
    64, and the norms, 2 x 64 + 2 x 16; 64 of 128 words, twice, and the last norm."""
    config = TINY | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128}
    config |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "tie_word_embeddings": False}
    groups = "workerGroups=[{name: train}, {name: rollout, accelerator: {count: 2}}]"
    job = ("training.precision=Float32", "rollout.engine=VLLM", "rollout.parallelism.tensor=2", groups)
    layer = (2 * 64 * 64 + 3 * 128 * 64) // 2 + 2 * 16 * 64 + 2 * 64 + 2 * 16
    delta = phases(config, *job, "weightSync={delta: {}}", group="rollout")
    assert delta["generate"].delta == 4 * (2 * layer + 2 * 64 * 64 + 64)


def test_workers_that_share_a_copy_put_together_their_part_of_a_tensor():
    """An embedding of 2^18 words x 64 of 4 bytes is two chunks of 32 MiB; a half of it is one, more than a half not."""

    def beyond(tensor, words):
        groups = "workerGroups=[{name: train}, {name: rollout, accelerator: {count: 2}}]"
        job = ("training.precision=Float32", "rollout.engine=VLLM", f"rollout.parallelism.tensor={tensor}", groups)
        config = TINY | {"num_key_value_heads": 2, "vocab_size": words}
        result = phases(config, *job, "algorithm.kl.coefficient=0", group="rollout")
        return result["sync"].peak - result["load"].peak - result["sync"].cache

    assert [beyond(tensor, 1 << 18) for tensor in (1, 2)] == [2 << 25, 0]
    assert beyond(2, (1 << 18) + 64) == (1 << 25) + 32 * 64 * 4


def test_sources_share_what_goes_as_changes_and_on_accelerators_it_lies_elsewhere():
    sources = "{name: train, accelerator: {count: 4}}"
    groups = f"workerGroups=[{sources}, {{name: rollout, accelerator: {{profile: nvidia-h100}}}}]"
    job = ("data.batchSize=8", "dataBuffer.memory=8Gi", groups, "weightSync={delta: {}}")
    # 4 bytes of 8,190,735,360 are 14 buckets of the size of the largest tensor, 151,936 x 4096: four on a source
    assert phases(QWEN3_8B, *job)["train"].delta == 4 * 151_936 * 4096 * 4
    assert phases(QWEN3_8B, *job, group="rollout")["generate"].delta == 0


def test_a_tensor_that_is_larger_than_a_bucket_is_one():
    groups = on_two_hosts("algorithm.kl.coefficient=0")
    wide, narrow = (phases(QWEN3_8B | {"vocab_size": size}, *groups) for size in (151_936, 100))
    # 151,936 x 4096 of 2 bytes; the MLP's 12,288 x 4096 of 2 bytes are 96 MiB
    assert wide["sync"].peak - wide["load"].peak == 2 * 151_936 * 4096 * 2
    assert narrow["sync"].peak - narrow["load"].peak == 2 * (96 << 20)
    small = phases(TINY, *groups)
    assert small["sync"].peak - small["load"].peak == 2 * 144_224 * 2  # a model that is smaller than a bucket


def test_weights_that_go_as_they_are_take_room_only_where_they_are_put_together():
    def beyond(group, transport, vocabulary):
        job = ("algorithm.kl.coefficient=0", "training.precision=Float32", f"weightSync.transport={transport}")
        groups = ",".join(f"{{name: {name}, accelerator: {{profile: cpu, count: 1}}}}" for name in ("train", "rollout"))
        result = phases(TINY | {"vocab_size": vocabulary}, *job, f"workerGroups=[{groups}]", group=group)
        return result["sync"].peak - result["load"].peak - result["sync"].cache

    chunk = 16 << 20  # an embedding of 65,536 x 64 of 4 bytes fits one that is broadcast, twice as much one of 1 GiB
    assert [beyond(group, "DataBuffer", 131_072) for group in ("train", "rollout")] == [0, 0]
    assert [beyond(group, "DataBuffer", 131_073) for group in ("train", "rollout")] == [0, 2 * chunk + 4 * 64]
    # chunks that are broadcast lie in the workers: as many as the model has, and four at most
    whole = 4 * parse_shape(TINY | {"vocab_size": 65_537}).parameters
    assert [beyond(group, "Collective", 65_537) for group in ("train", "rollout")] == [whole, whole + chunk + 4 * 64]
    assert beyond("train", "Collective", 1 << 20) == 4 * chunk


def test_who_only_generates_has_its_cache_while_weights_come():
    apart = phases(TINY, "algorithm.kl.coefficient=0", *TWO_GROUPS, group="rollout")
    assert apart["sync"].cache == apart["generate"].cache > 0
    assert phases(TINY, gpus(1, 1), "algorithm.kl.coefficient=0")["sync"].cache == 0


def test_a_copy_that_has_no_room_is_said_to_be_a_checkpoint():
    limits = "{containers: [{name: worker, resources: {limits: {memory: 110Gi}}}]}"
    group = f"workerGroups=[{{name: train, accelerator: {{count: 1}}, template: {{spec: {limits}}}}}]"
    job = ("algorithm.kl.coefficient=0", "data.batchSize=8", LITTLE, group)
    with pytest.raises(InvalidJobError, match="to write a checkpoint .* checkpoint 91.5 GiB"):
        planned(QWEN3_8B, *job)


def test_where_changes_have_no_room_to_send_whole_weights_helps():
    limits = "{containers: [{name: worker, resources: {limits: {memory: 20Gi}}}]}"
    rollout = f"{{name: rollout, accelerator: {{count: 1}}, template: {{spec: {limits}}}}}"
    job = ("data.batchSize=8", "dataBuffer.memory=8Gi", f"workerGroups=[{{name: train}}, {rollout}]")
    with pytest.raises(InvalidJobError) as caught:
        planned(QWEN3_8B, *job, "weightSync={delta: {}}")
    (problem,) = caught.value.problems
    assert "weights 30.5 GiB" in problem.message and "delta 30.5 GiB" in problem.message
    assert "leave weightSync.delta out" in problem.fix


def test_what_cannot_fit_is_refused_with_the_numbers_and_what_would_help():
    with pytest.raises(InvalidJobError) as caught:
        planned(QWEN3_8B, gpus(1, count=1), "data.batchSize=8")
    (problem,) = caught.value.problems
    assert problem.path == "spec.workerGroups[0]"
    assert "to train" in problem.message and "79.6 GiB" in problem.message and "optimizer 61.0 GiB" in problem.message
    assert "more replicas or accelerators" in problem.fix
    assert planned(QWEN3_8B, gpus(1), "data.batchSize=8").memory


def test_activations_are_lowered_before_hosts_are_added():
    with pytest.raises(InvalidJobError) as caught:
        planned(
            QWEN3_8B, gpus(4), "data.batchSize=32", "data.maxPromptTokens=32768", "dataBuffer.memory=16Gi",
            "training.tokensPerMicroBatch=32768", "training.memory.activationCheckpointing=None",
        )  # fmt: skip
    assert caught.value.problems[0].fix.startswith("Lower training.tokensPerMicroBatch, or set training.memory.act")


@pytest.mark.parametrize("memory, fits", [("16Gi", True), ("1Gi", False)])
def test_workers_on_cpus_share_the_limit_of_their_container(memory, fits):
    limits = f"{{containers: [{{name: worker, resources: {{limits: {{memory: {memory}}}}}}}]}}"
    overrides = f"workerGroups=[{{name: train, accelerator: {{count: 4}}, template: {{spec: {limits}}}}}]"
    if fits:
        assert planned(TINY, overrides).memory
        return
    with pytest.raises(InvalidJobError, match="512.0 MiB besides its models") as caught:
        planned(TINY, overrides)
    assert "limits.memory gives it 256.0 MiB" in str(caught.value)


def on_two_hosts(*overrides):
    groups = ", ".join(
        f"{{name: {name}, accelerator: {{profile: nvidia-h100, count: 8}}}}" for name in ("train", "rollout")
    )
    return (f"workerGroups=[{groups}]", "data.batchSize=64", "training.tokensPerMicroBatch=2048", *overrides)


def test_a_cache_takes_its_fraction_of_what_is_free():
    one_row = (16 + 4096) * 36 * 2 * 1024 * 2
    result = phases(QWEN3_8B, *on_two_hosts("rollout.maxResponseTokens=4096"), group="rollout")
    assert result["generate"].cache == 32 * one_row  # 256 rows on 8 workers: all of them
    few = phases(
        QWEN3_8B, *on_two_hosts("rollout.maxResponseTokens=4096", "rollout.memoryFraction=0.1"), group="rollout"
    )
    memory = 81559 << 20
    free = memory - int(memory / 20) - (1 << 30) - (1 << 28) - 2 * 8_190_735_360  # one axis of 8 workers
    assert few["generate"].cache == free // 10 // one_row * one_row


def test_a_row_that_alone_has_no_room_is_refused():
    with pytest.raises(InvalidJobError) as caught:
        planned(QWEN3_8B, *on_two_hosts("rollout.maxResponseTokens=600000", "dataBuffer.memory=64Gi"))
    result = next(problem for problem in caught.value.problems if problem.fix.startswith("Lower rollout.max"))
    assert result.path == "spec.workerGroups[1]" and "cache 82.4 GiB" in result.message


ONE = (gpus(1), "data.batchSize=8", LITTLE, "algorithm.kl.coefficient=0")
OPTIMIZER, PARAMETERS = (f"training.memory.offload.{name}=true" for name in ("optimizer", "parameters"))
NUMBERS = 8_190_735_360


def test_an_optimizer_on_the_host_comes_back_a_bucket_at_a_time():
    here, away = phases(QWEN3_8B, *ONE), phases(QWEN3_8B, *ONE, OPTIMIZER)
    assert (here["load"].host, away["load"].host) == (
        NUMBERS,
        NUMBERS,
    )  # 8 bytes over 8 ranks, asleep or there for good
    assert away["load"].optimizer == 0 and away["load"].weights == here["load"].weights
    # the means of an eighth of the embedding, which is larger than a bucket
    assert away["train"].optimizer == 2 * 151_936 * 4096 * 4 // 8
    # beside gradients, where nothing else is left of the update
    assert NUMBERS - away["train"].optimizer < here["train"].peak - away["train"].peak < NUMBERS


def test_parameters_on_the_host_come_back_a_few_layers_at_a_time():
    here, away = phases(QWEN3_8B, *ONE), phases(QWEN3_8B, *ONE, PARAMETERS)
    # an eighth of 4 bytes each of weights, and of 8 of the optimizer, which steps there; in an update of gradients, too
    assert (away["load"].host, away["train"].host) == (NUMBERS // 2 + NUMBERS, 2 * NUMBERS)
    assert away["load"].weights == 2 * NUMBERS == here["load"].weights - NUMBERS // 2  # the copy that generates
    assert away["train"].optimizer == 0
    assert away["train"].gradients == here["train"].gradients - NUMBERS // 2
    assert away["train"].weights - away["load"].weights == here["train"].weights - here["load"].weights
    both = phases(QWEN3_8B, *ONE, "algorithm={name: PPO, kl: {coefficient: 0}}", PARAMETERS)  # one after the other
    assert both["train"].host - both["load"].host == NUMBERS // 2
    reference = (*ONE[:-1], PARAMETERS)  # which is only asked: an eighth of 2 bytes each
    assert phases(QWEN3_8B, *reference)["load"].host - away["load"].host == NUMBERS // 4
    assert phases(QWEN3_8B, *reference)["load"].weights == away["load"].weights


def test_optimizers_sleep_while_the_same_accelerators_generate():
    result = phases(QWEN3_8B, *ONE)
    assert (result["train"].optimizer, result["generate"].optimizer) == (NUMBERS, 0)
    # they sleep before what generates is built, and what has slept keeps its memory there
    assert [result[phase].host for phase in ("load", "generate", "train", "sync")] == [NUMBERS] * 4
    assert result["generate"].peak == result["load"].peak + result["generate"].cache + result["generate"].logits
    for stays in (phases(TINY, *ONE), phases(TINY, CPUS)):  # too little to be worth it, and no other memory to go to
        assert stays["generate"].optimizer == stays["train"].optimizer > 0 and stays["generate"].host == 0


def test_weights_come_while_optimizers_of_the_same_accelerators_sleep():
    result = phases(QWEN3_8B, gpus(1), "algorithm.kl.coefficient=0", "data.batchSize=8")
    assert (result["sync"].optimizer, result["sync"].host) == (0, NUMBERS)
    # two buckets as large as the largest tensor, 151,936 x 4096 of 2 bytes
    assert result["sync"].peak == result["load"].weights + 2 * 151_936 * 4096 * 2
    apart = phases(QWEN3_8B, *on_two_hosts("algorithm.kl.coefficient=0"))
    assert apart["sync"].optimizer == apart["train"].optimizer > 0


@pytest.mark.parametrize("engine", ["VLLM", "Transformers"])
def test_what_generates_has_dropped_its_weights_while_the_same_accelerators_train(engine):
    result = phases(QWEN3_8B, *ONE, f"rollout.engine={engine}")
    copy = 2 * NUMBERS
    gathered = 2 * (2 * 151_936 * 4096 + 4096 + 3 * 192_946_432)
    assert result["train"].weights == result["load"].weights - copy + gathered
    assert result["sync"].weights == result["generate"].weights == result["load"].weights
    # a critic that learns alone leaves the policy as it is, for which no new weights come
    warm = ("algorithm={name: PPO, kl: {coefficient: 0}, critic: {warmupSteps: 2}}", f"rollout.engine={engine}")
    critic = phases(QWEN3_8B, *ONE, *warm)
    assert critic["train"].weights == critic["load"].weights + gathered


def test_what_cannot_sleep_on_cpus_is_counted_beside_training():
    small = QWEN3_8B | {"num_hidden_layers": 2, "vocab_size": 20_000}
    vllm, transformers = (phases(small, CPUS, f"rollout.engine={engine}") for engine in ("VLLM", "Transformers"))
    copy = 4 * parse_shape(small).parameters
    assert vllm["train"].weights - transformers["train"].weights == copy
    assert vllm["generate"].weights == transformers["generate"].weights


def test_a_server_has_weights_and_keys_of_its_own():
    small = QWEN3_8B | {"num_hidden_layers": 2, "vocab_size": 20_000}
    server = "rollout.server={routes: SGLang, urls: ['http://a:1'], weightsDirectory: /mnt/weights}"
    groups = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 1}}]"
    served = phases(small, groups, "rollout.engine=HTTP", server)
    vllm = phases(small, groups, "rollout.engine=VLLM")
    assert served["generate"].cache == served["generate"].logits == 0 < vllm["generate"].cache
    assert vllm["load"].weights - served["load"].weights == 4 * parse_shape(small).parameters


def test_states_of_fewer_bytes_are_counted():
    whole, half, eighth = (
        phases(QWEN3_8B, *ONE, f"training.optimizer.states={states}", "training.betas=[0.9, 0.95]")["train"].optimizer
        for states in ("Float32", "BFloat16", "Int8")
    )
    assert (whole, half) == (NUMBERS, NUMBERS // 2)
    assert eighth == 2 * (NUMBERS // 8 + 4 * NUMBERS // 8 // 128)  # a code each, and a scale of 4 bytes of 128


def test_offloading_changes_nothing_on_cpus_and_is_said_to():
    made = [planned(TINY, CPUS, *more) for more in ((), (OPTIMIZER,), (PARAMETERS,))]
    assert all(item.memory == made[0].memory for item in made)
    assert [[warning for warning in warnings_of(result) if "offload" in warning] for result in made[:1]] == [[]]
    for result in made[1:]:
        (warning,) = [warning for warning in warnings_of(result) if "offload" in warning]
        assert "changes nothing: train trains on CPUs, whose memory is the host's" in warning
    assert not [warning for warning in warnings_of(planned(QWEN3_8B, *ONE, PARAMETERS)) if "offload" in warning]


def test_a_host_needs_room_for_what_waits_there():
    def limited(memory):
        limits = f"{{containers: [{{name: worker, resources: {{limits: {{memory: {memory}}}}}}}]}}"
        group = f"{{name: train, accelerator: {{profile: nvidia-h100, count: 8}}, template: {{spec: {limits}}}}}"
        return planned(QWEN3_8B, *ONE, f"workerGroups=[{group}]", PARAMETERS)

    with pytest.raises(InvalidJobError, match="22.9 GiB wait in its host's memory .* gives it 12.5 GiB") as caught:
        limited("100Gi")
    assert caught.value.problems[0].path == "spec.workerGroups[0].template"
    # 4 + 8 bytes that wait, 4 of gradients or 12 of a copy that is written: 22.9 GiB on each of 8
    assert limited("190Gi").memory


@pytest.mark.parametrize(
    "fields, read",
    [(("rollout.engine=VLLM",), 2 * (1_244_663_808 + 192_946_432)), ((), 0)],
    ids=["VLLM", "Transformers"],
)
def test_a_layer_and_what_is_outside_of_the_layers_is_read_on_the_host_at_the_start_alone(fields, read):
    result = phases(QWEN3_8B, gpus(1), "algorithm.kl.coefficient=0", "data.batchSize=8", *fields)
    assert result["load"].host == read + result["train"].optimizer  # which sleeps
    assert result["sync"].host == result["generate"].host == result["train"].optimizer
    assert phases(TINY, "algorithm.kl.coefficient=0", *fields)["load"].host == 0  # CPUs have no other memory


def test_a_host_without_room_for_what_is_read_there_of_a_model_is_refused():
    template = "workerGroups.1.template={spec: {containers: [{name: worker, resources: {limits: {memory: 20Gi}}}]}}"
    with pytest.raises(InvalidJobError, match="2.7 GiB lie in its host's memory at the start.*Raise the limit.$"):
        planned(QWEN3_8B, *on_two_hosts("rollout.engine=VLLM", "rollout.parallelism.tensor=2"), template)
    # a tensor of each of 8 sources is put together: two of 151,936 x 4,096 and six of 12,288 x 4,096, of 2 bytes each
    with pytest.raises(InvalidJobError, match="2.9 GiB lie in its host's memory while weights come, with the tensors"):
        planned(QWEN3_8B, *on_two_hosts("rollout.engine=VLLM"), template)


def test_what_does_not_fit_is_advised_what_may_be_offloaded():
    with pytest.raises(InvalidJobError) as caught:
        planned(QWEN3_8B, gpus(1, count=1), "data.batchSize=8")
    assert "offload.optimizer: true, or set training.memory.offload.parameters: true" in caught.value.problems[0].fix
    with pytest.raises(InvalidJobError) as caught:
        planned(QWEN3_8B, gpus(1, count=1), "data.batchSize=8", OPTIMIZER)
    assert "offload.optimizer" not in caught.value.problems[0].fix


def test_weights_of_a_compiled_model_are_not_lent_to_who_generates():
    lent, compiled = (phases(TINY, "algorithm.kl.coefficient=0", f"training.compile={on}") for on in ("false", "true"))
    assert compiled["load"].weights == 2 * lent["load"].weights


@given(
    st.sampled_from([(), (OPTIMIZER,), (PARAMETERS,), (OPTIMIZER, PARAMETERS)]),
    st.sampled_from(["None", "Full"]),
    st.sampled_from(["Float32", "BFloat16", "Int8"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1024, 16384]),
)
def test_what_saves_memory_never_takes_more_of_an_accelerator(offload, checkpointing, states, replicas, tokens):
    """And nothing is lost on the way: what leaves an accelerator is on its host."""
    base = (gpus(replicas), "data.batchSize=64", f"training.tokensPerMicroBatch={tokens}", "training.betas=[0.9, 0.9]")
    saving = (
        *offload, f"training.memory.activationCheckpointing={checkpointing}", f"training.optimizer.states={states}",
    )  # fmt: skip
    plain, saved = phases(TINY_DEEP, *base), phases(TINY_DEEP, *base, *saving)
    for name, phase in plain.items():
        assert saved[name].peak <= phase.peak, name
    least = phases(TINY_DEEP, *base, f"training.optimizer.states={states}")["load"]
    assert saved["load"].weights + saved["train"].optimizer + saved["load"].host >= least.weights + least.optimizer


TINY_DEEP = QWEN3_8B | {"num_hidden_layers": 12, "vocab_size": 32_000}


SEES = TINY | {
    "model_type": "qwen3_vl",
    "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64},
}


DEVICE = ParallelLayout(parse_shape(SEES), ranks=1, stored=4, computed=2, on_cpu=False)


def seeing_phases(config, images="images", *, trained=False, job=None):
    """Of a job with pictures on one GPU."""
    shapes = {"models/tiny": parse_shape(config)}
    made = plan(job or make_job(gpus(1, 1), "algorithm.kl.coefficient=0"), shapes=shapes)
    spec = made.spec.model_copy(update={"data": made.spec.data.model_copy(update={"images_column": images})})
    seeing = spec.models[0].model_copy(update={"vision": VisionSpec(train=trained)})
    spec = spec.model_copy(update={"models": (seeing,)})
    (memory,) = memory_of(made.model_copy(update={"spec": spec}), shapes, {})
    return {phase.phase: phase for phase in memory.phases}


def test_a_tower_is_there_with_its_model_and_pictures_while_it_computes():
    blind, sees, unused = seeing_phases(TINY), seeing_phases(SEES), seeing_phases(SEES, images=None)
    tower = parse_shape(SEES).vision
    # on a device masters of 4 bytes that train and a copy of 2 that generates, each with its tower
    assert sees["load"].weights - blind["load"].weights == 6 * tower.parameters
    assert sees["train"].optimizer == blind["train"].optimizer
    assert unused["load"].weights == sees["load"].weights
    assert unused["train"].pictures == unused["generate"].pictures == blind["train"].pictures == 0
    # all rows are one pack of 8 x 4 x 48 tokens, and may be pictures altogether
    seen = picture_memory(tower, DEVICE, 8 * 4 * 48, trained=False, recompute=False, several=False)
    assert sees["train"].pictures == seen.pictures
    # a decoder that takes more: what the tower worked with is gone, and weights that it gathers are there
    deep = SEES | {"num_hidden_layers": 12}
    more, less = seeing_phases(deep)["train"].peak, seeing_phases(deep, images=None)["train"].peak
    assert more - less == seen.kept + seen.gathered
    prompts = picture_memory(tower, DEVICE, 8 * 16, trained=False, recompute=False, several=False)
    assert sees["generate"].pictures == prompts.pictures


def test_prompts_that_are_computed_at_once_are_bounded_where_text_is_generated():
    tower = parse_shape(SEES).vision

    def pictures_of(prompt, num_prompts):
        spec = make_job(gpus(1, 1), f"data.maxPromptTokens={prompt}", f"data.batchSize={num_prompts}")
        return seeing_phases(SEES, job=spec)["generate"].pictures

    def taken(tokens):
        return picture_memory(tower, DEVICE, tokens, trained=False, recompute=False, several=False).pictures

    assert pictures_of(4096, 2) == taken(2 * 4096)
    assert pictures_of(4096, 8) == taken(PREFILL_TOKENS)
    assert pictures_of(PREFILL_TOKENS + 1, 8) == taken(PREFILL_TOKENS + 1)  # it goes alone


def test_a_tower_that_is_trained_has_gradients_and_keeps_what_it_computes():
    frozen, trained = (seeing_phases(SEES, trained=train)["train"] for train in (False, True))
    tower = parse_shape(SEES).vision
    assert trained.gradients - frozen.gradients == 4 * tower.parameters
    seen = picture_memory(tower, DEVICE, 8 * 4 * 48, trained=True, recompute=False, several=False)
    assert trained.pictures == seen.pictures
    states = 2 * 4 * tower.parameters
    assert trained.peak - frozen.peak > states + seen.kept - frozen.pictures


def seeing_job(patches):
    shapes = {"models/tiny": parse_shape(SEES)}
    made = plan(make_job(gpus(1, 1), "algorithm.kl.coefficient=0"), shapes=shapes)
    data = made.spec.data.model_copy(update={"images_column": "images"})
    training = made.spec.training.model_copy(update={"patches_per_micro_batch": patches})
    spec = made.spec.model_copy(update={"data": data, "training": training})
    (memory,) = memory_of(made.model_copy(update={"spec": spec}), shapes, {})
    return {phase.phase: phase.pictures for phase in memory.phases}["train"]


def test_a_budget_of_patches_bounds_the_pictures_that_are_computed_at_once():
    tower = parse_shape(SEES).vision
    # 4 patches a token: 200 are 50 tokens; 40 are less than the one prompt of 16 tokens that goes alone
    for patches, tokens in ((200, 50), (40, 16)):
        seen = picture_memory(tower, DEVICE, tokens, trained=False, recompute=False, several=True)
        assert seeing_job(patches) == seen.pictures


SIMULATED = "rollout.simulator={run: 'm:f', cameras: [front], video: {path: models/vjepa2, frames: 4}}"
ENCODER = VideoEncoderShape(hidden=16, intermediate=32, layers=1, patch=8, tubelet=2, crop=16)
LAYER = 4 * (4 * 16 * 16 + 4 * 16 + 2 * 16 * 32 + 32 + 16 + 4 * 16)
"""Bytes of its layer."""


def with_encoder(encoder, *overrides):
    shapes = {"models/tiny": replace(parse_shape(TINY), videos=encoder)}
    (group,) = plan(make_job("algorithm={name: SRPO}", SIMULATED, *overrides), shapes=shapes).memory
    return group


@pytest.mark.parametrize(("workers", "part"), [((), "peak"), ((gpus(1),), "host")])
def test_what_encodes_videos_in_a_worker_is_in_the_memory_of_its_host(workers, part):
    def sizes(*overrides, layers=1):
        group = with_encoder(replace(ENCODER, layers=layers), *workers, *overrides)
        return {item.phase: getattr(item, part) for item in group.phases}

    with_layer, without = sizes(), sizes(layers=0)
    assert {phase: size - without[phase] for phase, size in with_layer.items()} == dict.fromkeys(with_layer, LAYER)


def test_a_video_is_encoded_while_episodes_are_played():
    four, eight = (
        {item.phase: item.pictures for item in with_encoder(ENCODER, f"rollout.simulator.video.frames={n}").phases}
        for n in (4, 8)
    )
    # two more tubelets of 2 x 2 patches
    assert eight["generate"] - four["generate"] == 4 * 8 * (7 * 16 + 2 * 32)
    assert eight["train"] == four["train"]


def test_a_job_whose_encoder_of_videos_is_not_here_states_no_memory():
    assert with_encoder(None).unknown == ("models/vjepa2",)


@pytest.mark.parametrize("profile, fuses", [("nvidia-h100", True), ("ascend-910b", False), ("cpu", False)])
def test_norms_are_one_kernel_on_cuda_alone(profile, fuses):
    group = f"workerGroups=[{{name: train, accelerator: {{profile: {profile}, count: 1}}}}]"
    made = plan(make_job(group))
    assert parallel_layout(made, made.engine("train/actor"), parse_shape(QWEN3_8B), 0).fuses_norms is fuses
