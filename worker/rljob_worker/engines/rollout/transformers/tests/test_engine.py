"""Generation against a forward per token on the stock model, and against the training engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MistralConfig

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.rollout.generate import Responses, generate
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.sampling import draw_numbers, sample
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import END, VOCABULARY, PolicyGradient, write_config
from rljob_worker.errors import InvalidJob, PeerLost
from rljob_worker.random_bits import random_streams

CPU = torch.device("cpu")
SAMPLING = Sampling(temperature=0.9, seed=5)
MAX_TOKENS = 16


def rollout(path: str, dtype: torch.dtype = torch.float64, room: int = 10**6) -> TransformersRollout:
    """room: tokens in the cache; two layers of two heads of 8 numbers each, twice."""
    return TransformersRollout(random_policy(path, dtype, 0), CPU, (END,), 1.0, lambda: room * 64 * dtype.itemsize)


def some_prompts(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, VOCABULARY, length) for length in lengths]


def by_hand(model: torch.nn.Module, prompt: np.ndarray, row_id: int, sampling: Sampling, max_tokens: int) -> list[int]:
    """One token at a time, each from a whole forward without a cache."""
    from rljob_worker.engines.attention.varlen import PackedLayout

    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens and (len(ids) == len(prompt) or ids[-1] != END):
        layout = PackedLayout.build(np.arange(len(ids)), np.array([len(ids)]), len(ids), CPU)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False, attention_layout=layout).logits[0, -1:]
        position = np.array([len(ids) - len(prompt)])
        stream = random_streams(sampling.seed, np.array([row_id]))
        tokens, _ = sample(logits, sampling, stream, draw_numbers(np.zeros(1, np.int64), position))
        ids.append(int(tokens))
    return ids[len(prompt) :]


def assert_same(left: Responses, right: Responses) -> None:
    assert [row.tolist() for row in left.response_ids.to_list()] == [
        row.tolist() for row in right.response_ids.to_list()
    ]
    np.testing.assert_allclose(left.log_probs.values, right.log_probs.values, atol=1e-6)
    assert left.truncated.tolist() == right.truncated.tolist()


def write_mistral(directory: Path) -> str:
    """A sliding window of 6 tokens."""
    MistralConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        sliding_window=6,
        eos_token_id=END,
    ).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2", "mistral"])
@pytest.mark.parametrize("temperature", [0.9, 0.0])
def test_every_row_is_what_decoding_it_alone_gives(tmp_path: Path, kind: str, temperature: float) -> None:
    path = write_mistral(tmp_path) if kind == "mistral" else write_config(tmp_path, kind)
    engine = rollout(path)
    sampling = Sampling(temperature=temperature, seed=3)
    prompts, row_ids = some_prompts([7, 1, 9]), np.arange(100, 106)
    responses = generate(engine, prompts, sampling, row_ids, 2, 12)
    expected = [by_hand(engine.model, prompts[row // 2], int(row_ids[row]), sampling, 12) for row in range(6)]
    assert [row.tolist() for row in responses.response_ids.to_list()] == expected
    assert responses.truncated.tolist() == [END not in row for row in expected]


@pytest.mark.parametrize("room", [49, 120, 333])
def test_how_many_rows_decode_at_once_changes_nothing(tmp_path: Path, room: int) -> None:
    path = write_config(tmp_path)
    prompts, row_ids = some_prompts([7, 1, 9, 4, 4]), np.arange(20)
    sampling = Sampling(seed=1)
    whole = generate(rollout(path), prompts, sampling, row_ids, 4, 40)
    assert not whole.truncated.all() and whole.truncated.any()
    bounded = rollout(path, room=room)
    assert_same(generate(bounded, prompts, sampling, row_ids, 4, 40), whole)
    part = generate(bounded, prompts[2:4], sampling, row_ids[8:16], 4, 40)
    assert [row.tolist() for row in part.response_ids.to_list()] == [
        row.tolist() for row in whole.response_ids.to_list()[8:16]
    ]


def test_no_prompts_make_no_responses(tmp_path: Path) -> None:
    responses = generate(rollout(write_config(tmp_path)), [], SAMPLING, np.empty(0, np.int64), 8, 4)
    assert responses.response_ids.num_rows == 0


def test_a_trainers_log_probs_of_fresh_rows_are_those_of_the_rollout(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    prompts, row_ids = some_prompts([7, 1, 9, 4]), np.arange(32)
    responses = generate(rollout(path, torch.float32), prompts, SAMPLING, row_ids, 8, MAX_TOKENS)
    trainer = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(temperature=0.9, trainable=False), CPU)
    columns = {
        "prompt_ids": Column.ragged([prompts[row // 8] for row in row_ids]),
        "response_ids": responses.response_ids,
    }
    log_probs = trainer.log_probs(Batch.build(row_ids, row_ids // 8, columns))
    np.testing.assert_allclose(log_probs.values, responses.log_probs.values, atol=1e-5)
    assert log_probs.lengths.tolist() == responses.response_ids.lengths.tolist()


def test_weights_come_from_the_trainer_under_their_names(tmp_path: Path) -> None:
    path = write_config(tmp_path, tie_word_embeddings=True)
    settings = TrainSettings(learning_rate=1e-1)
    trainer = FSDPEngine(random_policy(path, torch.float32, 0), settings, CPU)
    engine = rollout(path, torch.float32)
    prompts, row_ids = some_prompts([3, 5]), np.arange(4)
    before = generate(engine, prompts, SAMPLING, row_ids, 2, MAX_TOKENS)
    columns = {"prompt_ids": Column.ragged([prompts[row // 2] for row in row_ids]), "response_ids": before.response_ids}
    columns |= {
        "advantages": Column.from_lengths(np.ones(len(before.response_ids.values)), before.response_ids.lengths),
        "weight": Column.fixed(np.ones(4)),
    }
    trainer.update(Batch.build(row_ids, row_ids // 2, columns), PolicyGradient())
    engine.load_weights(trainer.weights(), version=1)
    assert engine.version == 1
    shared = TransformersRollout(trainer.model, CPU, (END,))
    shared.load_weights(trainer.weights(), version=1)
    after = generate(engine, prompts, SAMPLING, row_ids, 2, MAX_TOKENS)
    assert_same(generate(shared, prompts, SAMPLING, row_ids, 2, MAX_TOKENS), after)
    assert not np.array_equal(after.log_probs.values[:1], before.log_probs.values[:1])


def test_weights_that_are_trained_in_finer_numbers_are_rounded_into_place(tmp_path: Path) -> None:
    path = write_config(tmp_path, tie_word_embeddings=True)
    trainer = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(precision="BFloat16"), CPU)
    own = [local_part(parameter.detach()) for parameter in trainer.model.parameters()]
    # as near to one neighbour as to the other, twice; too small and too large for bfloat16; no numbers
    own[0].view(-1)[:7] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1e-45, 3.4e38, -0.0, torch.inf, torch.nan])
    assert {item.data_ptr() for _, item in trainer.weights()} == {item.data_ptr() for item in own}, "copies on the way"
    engine = TransformersRollout(random_policy(path, torch.bfloat16, 7), CPU, (END,))
    engine.load_weights(trainer.weights(), version=1)
    expected = {name: item.to(torch.bfloat16) for name, item in trainer.weights(torch.float32)}
    parameters = dict(engine.model.named_parameters())
    assert parameters.keys() == expected.keys()
    assert all(torch.equal(parameters[name].view(torch.int16), expected[name].view(torch.int16)) for name in expected)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    engine = rollout(write_config(tmp_path))
    with pytest.raises(InvalidJob, match="none of that name"):
        engine.load_weights([("other.weight", torch.zeros(2))], version=1)
    with pytest.raises(InvalidJob, match="shape"):
        engine.load_weights([("model.norm.weight", torch.zeros(2))], version=1)
    assert engine.version == 0


def test_a_policy_that_came_half_generates_nothing_until_it_is_whole(tmp_path: Path) -> None:
    engine = rollout(write_config(tmp_path))
    named = [(name, tensor.clone()) for name, tensor in engine.model.named_parameters()]
    prompts, row_ids = some_prompts([3]), np.arange(4)
    before = generate(engine, prompts, SAMPLING, row_ids, 4, MAX_TOKENS)

    def lost():
        yield from named[:3]
        raise PeerLost("the source is gone")

    for broken, error in [(named[1:], InvalidJob), (lost(), PeerLost)]:
        with pytest.raises(error):
            engine.load_weights(broken, version=2)
        assert engine.version == 0
        with pytest.raises(AssertionError, match="after version 0 has not come whole"):
            generate(engine, prompts, SAMPLING, row_ids, 4, MAX_TOKENS)
        engine.abort(row_ids)
    engine.load_weights(reversed(named), version=2)
    assert engine.version == 2
    assert_same(generate(engine, prompts, SAMPLING, row_ids, 4, MAX_TOKENS), before)


def test_rows_that_ended_leave_the_batch(tmp_path: Path) -> None:
    engine = rollout(write_config(tmp_path))
    decoded = []
    engine.model.register_forward_pre_hook(
        lambda _, args, inputs: decoded.append(inputs["input_ids"].shape[0]), with_kwargs=True
    )
    lengths = generate(engine, some_prompts([4] * 8), Sampling(seed=1), np.arange(64), 8, 60).response_ids.lengths
    # the first forward is the prefill of one pack; then step t decodes the rows longer than t, and at most 1 in 16 more
    alive = [int((lengths > step).sum()) for step in range(1, 60)]
    steps = decoded[1:]
    assert len(steps) == lengths.max() - 1
    assert all(rows <= going * 16 / 15 for rows, going in zip(steps, alive, strict=False))


def test_memory_of_a_call_serves_the_next_whatever_its_size(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    used = rollout(path)
    for lengths, rows, max_tokens in [([3], 2, 4), ([200, 2], 3, 8), ([5, 80], 1, 170), ([7], 4, 3)]:
        prompts, row_ids = some_prompts(lengths), np.arange(rows * len(lengths))
        fresh = generate(rollout(path), prompts, SAMPLING, row_ids, rows, max_tokens)
        assert_same(generate(used, prompts, SAMPLING, row_ids, rows, max_tokens), fresh)


def test_sleep_frees_the_cache_and_generation_wakes_by_itself(tmp_path: Path) -> None:
    engine = rollout(write_config(tmp_path))
    prompts, row_ids = some_prompts([3]), np.arange(4)
    before = generate(engine, prompts, SAMPLING, row_ids, 4, MAX_TOKENS)
    engine.sleep("Cache")
    engine.sleep("Weights")
    assert_same(generate(engine, prompts, SAMPLING, row_ids, 4, MAX_TOKENS), before)


def test_engines_fit_their_protocols(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert isinstance(rollout(path), RolloutEngine)
    assert isinstance(FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(), CPU), TrainEngine)
