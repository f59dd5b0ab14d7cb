"""What axes cost, for 32 rows of 48 tokens and a model of two layers, in numbers that a head can follow."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.planner import plan
from rljob_api.planning.tests.test_memory import TINY
from rljob_api.tests.builders import make_job, make_plan

KEYS = {"num_attention_heads": 8, "num_key_value_heads": 2}
"""Queries are 64 wide, keys 16, as the hidden state is 64; 4 bytes each."""
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def costs(parallelism, *overrides, count=2, replicas=1, config=TINY | KEYS):
    """By axis, of one mesh; of the policy alone, which is updated once."""
    workers = f"workerGroups=[{{name: train, replicas: {replicas}, accelerator: {{profile: cpu, count: {count}}}}}]"
    job = make_job(workers, f"training.parallelism={parallelism}", "algorithm.kl.coefficient=0", *overrides)
    made = plan(job, shapes={"models/tiny": parse_shape(config)})
    (found,) = made.meshes
    assert found.mesh == made.engine("train/actor").mesh
    return {each.axis: each for each in found.axes}


def test_heads_are_exchanged_for_tokens():
    found = costs("{context: 2}")["cp"]
    # half of 1,536 tokens, forth and back, in 2 layers; of queries, keys, values and output the other half
    assert found.way == "Heads" and found.sent == 768 * 2 * 2 * (2 * 64 + 2 * 16) * 4 // 2


def test_keys_and_their_gradients_go_round():
    found = costs("{context: 4}", count=4)["cp"]
    # 384 tokens of keys and values, to three others, forth and back; gradients to three others and home
    assert found.way == "Ring" and found.sent == 384 * 2 * 2 * 16 * 4 * (3 + 3 + 4)


def test_passes_that_are_computed_again_and_those_that_score_send_as_much():
    one = costs("{context: 2}")["cp"].sent
    again = costs("{context: 2}", "training.memory.activationCheckpointing=Full")["cp"].sent
    more = costs("{context: 2}", "training.miniBatchRows=16")["cp"].sent  # scored before two updates of half the rows
    epochs = costs("{context: 2}", "algorithm.updateEpochs=3")["cp"].sent
    assert (again, more, epochs) == (1.5 * one, 1.5 * one, 3.5 * one)


def test_tokens_are_gathered_and_shared_out_twice_in_a_layer():
    found = costs("{tensor: 2}")["tp"]
    # 1,536 tokens, forth and back, in 2 layers, half of each of four times 64; and once the gradients of what each has
    # whole: two embeddings of 100 words and a norm, sent to be added up and sent again
    assert found.sent == 1536 * 2 * 2 * 4 * 64 * 4 // 2 + (2 * 100 * 64 + 64) * 4
    assert found.way is None


def test_tokens_visit_the_experts_that_they_chose():
    found = costs("{expert: 2}", config=TINY | KEYS | EXPERTS)
    # 16 rows of a worker, forth and back, in 2 layers, two experts each, to and fro, every second one elsewhere
    assert found["ep"].sent == 16 * 48 * 2 * 2 * 2 * 2 * 64 * 4 // 2


def test_weights_are_gathered_and_gradients_reduced():
    shape = parse_shape(TINY | KEYS)
    # small: half of it once for both passes, and half of the gradients
    assert costs("{}")["dp"].sent == 2 * shape.parameters * 4 // 2
    assert costs("{}")["dp"].without is None


def test_an_axis_that_leaves_its_host_is_told_from_one_that_does_not():
    found = costs("{tensor: 2, context: 2}", count=2, replicas=4)
    assert {axis: each.crosses_hosts for axis, each in found.items()} == {"dp": True, "cp": True, "tp": False}
    assert costs("{tensor: 2}", "data.batchSize=6", count=3, replicas=2)["tp"].crosses_hosts  # ranks 2 and 3


def test_what_a_worker_would_have_without_an_axis_is_what_it_has_with_more_copies():
    long = ("data.maxPromptTokens=4096", "dataBuffer.memory=1Gi")
    found = costs("{context: 2, tensor: 2}", *long, count=4)
    peaks = {}
    for axis, parallelism in (("cp", "{tensor: 2}"), ("tp", "{context: 2}")):
        workers = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 4}}]"
        job = make_job(workers, f"training.parallelism={parallelism}", "algorithm.kl.coefficient=0", *long)
        (group,) = plan(job, shapes={"models/tiny": parse_shape(TINY | KEYS)}).memory
        peaks[axis] = next(phase.peak for phase in group.phases if phase.phase == "train")
    assert {axis: found[axis].without for axis in peaks} == peaks


@pytest.mark.parametrize("overrides", [(), ("training.parallelism.context=2",)])
def test_of_a_model_whose_config_is_not_at_hand_nothing_is_told(overrides):
    made = make_plan("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]", *overrides)
    assert made.meshes == () and made.engine("train/actor").mesh != Mesh()
