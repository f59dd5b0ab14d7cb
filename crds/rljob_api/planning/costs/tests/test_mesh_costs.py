"""What axes cost, for 32 rows of 48 tokens and a model of two layers, in numbers that a head can follow."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.costs.mesh_costs import model_passes
from rljob_api.planning.memory.tests.test_workers import TINY
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import make_job, make_plan

KEYS = {"num_attention_heads": 8, "num_key_value_heads": 2}
"""Queries are 64 wide, keys 16, as the hidden state is 64; 4 bytes each."""
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def plan_of(parallelism, *overrides, count=2, replicas=1, config=TINY | KEYS):
    """A plan of the policy alone, which is updated once."""
    workers = f"workerGroups=[{{name: train, replicas: {replicas}, accelerator: {{profile: cpu, count: {count}}}}}]"
    job = make_job(workers, f"training.parallelism={parallelism}", "algorithm.kl.coefficient=0", *overrides)
    return plan(job, shapes={"models/tiny": parse_shape(config)})


def costs(*arguments, **changes):
    """By axis, of one mesh."""
    made = plan_of(*arguments, **changes)
    (result,) = made.meshes
    assert result.mesh == made.engine("train/actor").mesh
    return {axis.axis: axis for axis in result.axes}


def shards(num_ranks):
    """What they send of weights, gathered once, and of gradients, reduced once."""
    return 2 * parse_shape(TINY | KEYS).parameters * 4 * (num_ranks - 1) // num_ranks


def test_heads_are_exchanged_for_tokens():
    result = costs("{context: 2}")["cp"]
    # half of 1,536 tokens, forth and back, in 2 layers; of queries, keys, values and output the other half
    assert result.way == "Heads" and result.sent - shards(2) == 768 * 2 * 2 * (2 * 64 + 2 * 16) * 4 // 2
    copies = costs("{context: 2}", count=4)  # which share weights over all four
    assert copies["cp"].sent == (result.sent - shards(2)) / 2 and copies["dp"].sent == shards(4)


def test_keys_and_their_gradients_go_round():
    result = costs("{context: 4}", count=4)["cp"]
    # 384 tokens of keys and values, to three others, forth and back; gradients to three others and home
    assert result.way == "Ring" and result.sent - shards(4) == 384 * 2 * 2 * 16 * 4 * (3 + 3 + 4)


def test_passes_that_are_computed_again_and_those_that_score_send_as_much():
    def exchanged(*overrides):
        return costs("{context: 2}", *overrides, count=4)["cp"].sent

    one = exchanged()
    again = exchanged("training.memory.activationCheckpointing=Full")
    more = exchanged("training.miniBatchRows=16")  # scored before two updates of half the rows
    epochs = exchanged("algorithm.updateEpochs=3")
    assert (again, more, epochs) == (1.5 * one, 1.5 * one, 3.5 * one)


def test_tokens_are_gathered_and_shared_out_twice_in_a_layer():
    result = costs("{tensor: 2}")["tp"]
    # 1,536 tokens, forth and back, in 2 layers, half of each of four times 64; and once the gradients of what each has
    # whole: two embeddings of 100 words and a norm, sent to be added up and sent again
    assert result.sent == 1536 * 2 * 2 * 4 * 64 * 4 // 2 + (2 * 100 * 64 + 64) * 4
    assert result.way is None


def test_tokens_visit_the_experts_that_they_chose():
    result = costs("{expert: 2}", config=TINY | KEYS | EXPERTS)
    # 16 rows of a worker, forth and back, in 2 layers, two experts each, to and fro, every second one elsewhere
    assert result["ep"].sent == 16 * 48 * 2 * 2 * 2 * 2 * 64 * 4 // 2


MEGATRON = "training.engine=Megatron"
LAYER = 64 * (64 + 2 * 16) + 64 * 64 + 3 * 64 * 128 + 2 * 64 + 2 * 8
"""Parameters; of the last layer 100 x 64."""


def test_hidden_states_go_to_the_next_stage_and_gradients_back():
    result = costs("{pipeline: 2}", MEGATRON)["pp"]
    # the first sends 1,536 tokens of 64 on, the last their gradients back; one between others both
    assert (result.sent, result.crosses_hosts, result.way) == (1536 * 64 * 4, False, None)
    deep = TINY | KEYS | {"num_hidden_layers": 4}
    assert costs("{pipeline: 4}", MEGATRON, count=4, config=deep)["pp"].sent == 2 * 1536 * 64 * 4
    both = costs("{pipeline: 2, tensor: 2}", MEGATRON, "training.miniBatchRows=16", count=2, replicas=2)
    # scored before it is updated: forwards twice, of half the tokens, as ranks that split matrices have them
    assert both["pp"].sent == 2 * 768 * 64 * 4
    assert both["pp"].crosses_hosts and not both["tp"].crosses_hosts


def test_stages_that_share_an_embedding_add_up_its_gradients():
    tied = TINY | KEYS | {"tie_word_embeddings": True}
    # the first and the last send 100 x 64 of them, once in an optimizer step; fewer than one between sends both ways
    assert costs("{pipeline: 2}", MEGATRON, config=tied)["pp"].sent == (1536 + 100) * 64 * 4
    twice = costs("{pipeline: 2}", MEGATRON, "training.miniBatchRows=16", config=tied)["pp"].sent
    assert twice == (2 * 1536 + 2 * 100) * 64 * 4
    deep = tied | {"num_hidden_layers": 4}
    assert costs("{pipeline: 4}", MEGATRON, count=4, config=deep)["pp"].sent == 2 * 1536 * 64 * 4


def test_workers_that_share_experts_are_as_far_apart_as_their_stages():
    config = TINY | KEYS | EXPERTS
    # of two copies of two stages, rank 0 shares with rank 2, which is in another pod
    apart = costs("{pipeline: 2, expert: 2}", MEGATRON, count=2, replicas=2, config=config)
    assert apart["ep"].crosses_hosts and not apart["pp"].crosses_hosts
    # neighbours that split matrices are of one stage
    beside = costs("{pipeline: 2, expert: 2, tensor: 2}", MEGATRON, count=2, replicas=2, config=config)
    assert not beside["ep"].crosses_hosts and beside["pp"].crosses_hosts


def test_a_reference_that_is_asked_in_the_update_learns_nothing():
    made = make_plan("algorithm.kl.estimator=Full")
    assert model_passes(made, made.engine("reference")) == (1, 0)
    assert model_passes(made, made.engine("train/actor")) == (1, 1)


def test_what_ranks_do_over_other_axes_they_do_with_a_stage():
    alone, staged = (costs(f"{{pipeline: {size}, tensor: 2}}", MEGATRON, count=2 * size)["tp"].sent for size in (1, 2))
    # one of two layers, and of what is beside them, whose gradients are reduced and gathered, one of two embeddings
    assert alone - staged == 1536 * 2 * 4 * 64 * 4 // 2 + (100 * 64) * 4


def test_stages_wait_for_each_other_at_both_ends_and_for_the_slowest():
    # a token sees 24 others on average
    first = 2 * LAYER + 4 * 64 * 24
    last = first + 2 * 100 * 64
    assert costs("{pipeline: 2}", MEGATRON)["pp"].waits == pytest.approx(1)  # of one micro-batch one waits always
    four = costs("{pipeline: 2}", MEGATRON, "training.tokensPerMicroBatch=384")["pp"]
    assert four.waits == pytest.approx((first + last + 3 * last) / (4 * (first + last) / 2) - 1)
    assert costs("{tensor: 2}")["tp"].waits is None


def test_pipeline_stages_with_too_few_micro_batches_are_reported():
    def warnings(*overrides):
        return [
            warning for warning in warnings_of(plan_of("{pipeline: 2}", MEGATRON, *overrides)) if "pipeline" in warning
        ]

    (warning,) = warnings()
    assert warning.startswith("training.parallelism.pipeline 2: workers wait 50% of their time for other stages")
    assert warnings("training.tokensPerMicroBatch=48") == []  # of 32 micro-batches


def test_a_worker_computes_its_part_of_the_layers_and_of_the_tokens():
    made = plan_of("{pipeline: 2}", MEGATRON)
    # forwards, and twice as much backwards
    assert made.meshes[0].operations == 1536 * 3 * (2 * (2 * LAYER + 100 * 64) + 2 * 4 * 64 * 24) / 2
    again = plan_of("{tensor: 2}", "training.memory.activationCheckpointing=Full")
    assert again.meshes[0].operations == pytest.approx(made.meshes[0].operations * 4 / 3)


def test_weights_are_gathered_and_gradients_reduced():
    assert costs("{}")["dp"].sent == shards(2)  # small: once for both passes
    assert costs("{}")["dp"].without is None


def test_replicas_gather_weights_in_their_hosts_and_send_gradients_once_from_host_to_host():
    alone, result = (costs("{}", count=2, replicas=2), costs("{replicate: 2}", count=2, replicas=2))
    assert alone["dp"].crosses_hosts and alone["dp"].sent == shards(4)
    # weights and gradients between two; half of the gradients to the other host added up, half of the sums back
    assert not result["dp"].crosses_hosts and result["dp"].sent == shards(2)
    half = parse_shape(TINY | KEYS).parameters * 4 // 2
    assert result["rp"].crosses_hosts and result["rp"].sent == half
    assert result["rp"].without == train_peak("{}", count=2, replicas=2)
    # two epochs of two mini-batches; weights of packs that are smaller are gathered no more often from host to host
    steps = ("algorithm.updateEpochs=2", "training.miniBatchRows=16", "training.tokensPerMicroBatch=48")
    assert costs("{replicate: 2}", *steps, count=2, replicas=2)["rp"].sent == 4 * half


def test_replicas_of_one_copy_share_out_weights_over_those_that_share_its_sequences():
    result = costs("{context: 2, replicate: 2}", count=2, replicas=2)
    exchanged = costs("{context: 2}", count=2, replicas=2)["cp"].sent  # of as many rows
    assert (result["dp"].sent, result["cp"].sent) == (0, exchanged + shards(2))


def train_peak(*arguments, **changes):
    """Bytes, of a worker."""
    (group,) = plan_of(*arguments, **changes).memory
    return next(phase.peak for phase in group.phases if phase.phase == "train")


def test_an_axis_that_leaves_its_host_is_distinguished_from_one_that_does_not():
    result = costs("{tensor: 2, context: 2}", count=2, replicas=4)
    assert {axis: item.crosses_hosts for axis, item in result.items()} == {"dp": True, "cp": True, "tp": False}
    assert costs("{tensor: 2}", "data.batchSize=6", count=3, replicas=2)["tp"].crosses_hosts  # ranks 2 and 3


def test_what_a_worker_would_have_without_an_axis_is_what_it_has_with_more_copies():
    long = ("data.maxPromptTokens=4096", "dataBuffer.memory=1Gi")
    result = costs("{context: 2, tensor: 2, pipeline: 2}", *long, MEGATRON, count=8)
    peaks = {}
    others = {"pp": "{context: 2, tensor: 2}", "cp": "{tensor: 2, pipeline: 2}", "tp": "{context: 2, pipeline: 2}"}
    for axis, parallelism in others.items():
        (group,) = plan_of(parallelism, *long, MEGATRON, count=8).memory
        peaks[axis] = next(phase.peak for phase in group.phases if phase.phase == "train")
    assert {axis: result[axis].without for axis in peaks} == peaks


@pytest.mark.parametrize("overrides", [(), ("training.parallelism.context=2",)])
def test_nothing_is_reported_of_a_model_without_a_config(overrides):
    made = make_plan("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]", *overrides)
    assert made.meshes == () and made.engine("train/actor").mesh != Mesh()
