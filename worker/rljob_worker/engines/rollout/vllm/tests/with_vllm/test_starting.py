"""Engines that start, and models that vLLM is not started for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PhiConfig, Qwen3Config

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import checkpoint_tensors, load_policy, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.tests.subjects import CPU, END, POSITIONS, VOCABULARY, write_model
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.rollout.vllm.weights.reload_check import require_faithful
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import InvalidJob

SETTINGS = VLLMSettings("float32", max_batch_rows=4, longest_row=64)


def start(path: str, settings: VLLMSettings = SETTINGS, seed: int = 0) -> RolloutEngine:
    """Over random weights of this seed."""
    return load_start()(settings, path, PolicyByLayers.random(path, torch.float32, seed), (END,), CPU)


def requests(num_rows: int) -> Requests:
    return Requests(
        row_ids=np.arange(num_rows),
        turns=np.zeros(num_rows, np.int64),
        prompts=Column.ragged([np.arange(2, 42)]),
        prompt_of=np.zeros(num_rows, np.int64),
        max_tokens=np.full(num_rows, 16),
        samplings=(Sampling(temperature=0.9, seed=2),),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def test_starting_leaves_the_process_as_it_was(path: str) -> None:
    load_start()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    before = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    set_num_threads = torch.set_num_threads
    engine = start(path)
    assert torch.equal(torch.rand(2), expected)
    assert {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} == before
    assert torch.set_num_threads is set_num_threads
    engine.close()


def test_a_trainers_log_probs_of_fresh_rows_are_those_of_the_rollout(path: str) -> None:
    engine = load_start()(SETTINGS, path, PolicyByLayers.of_files(path, torch.float32), (END,), CPU)
    engine.submit(requests(6))
    parts = []
    while len(ended := engine.advance()):
        parts.append(ended)
    rows = np.concatenate([part.row_ids for part in parts])
    responses = Column.concat([part.response_ids for part in parts]).take(np.argsort(rows))
    sampled = Column.concat([part.log_probs for part in parts]).take(np.argsort(rows))
    settings = TrainSettings(temperature=0.9, trainable=False)
    trainer = FSDPEngine(load_policy(path, torch.float32, CPU), settings, CPU)
    columns = {"prompt_ids": Column.ragged([np.arange(2, 42)] * 6), "response_ids": responses}
    trained = trainer.log_probs(Batch.build(np.arange(6), np.arange(6), columns))
    np.testing.assert_allclose(trained.values, sampled.values, atol=1e-5)
    engine.close()


def test_an_engine_that_computes_with_other_weights_is_refused(path: str) -> None:
    engine = start(path, seed=0)
    with pytest.raises(InvalidJob, match="log-probs of a probe differ by .* from those of transformers"):
        require_faithful(engine, random_policy(path, torch.float32, 1), "float32", 64)
    engine.close()


def test_a_stop_text_ends_a_response_and_nothing_else(path: str) -> None:
    vocabulary = Vocabulary(tuple(f"<{token}>".encode() for token in range(VOCABULARY)), {})
    policy = PolicyByLayers.of_files(path, torch.float32)
    engine = load_start()(SETTINGS, path, policy, (END,), CPU, vocabulary)
    engine.submit(requests(2))
    free = responses_of(engine)
    text = "".join(f"<{token}>" for token in free[0][4:6])
    engine.submit(replace(requests(2), samplings=(Sampling(temperature=0.9, seed=2, stop=(text,)),)))
    stopped = responses_of(engine)
    assert stopped[0] == free[0][:6] and stopped[1] == free[1]
    engine.submit(requests(2))
    assert responses_of(engine) == free
    engine.close()


def responses_of(engine: RolloutEngine) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    while len(ended := engine.advance()):
        tokens = [row.tolist() for row in ended.response_ids.to_list()]
        result |= dict(zip(ended.row_ids.tolist(), tokens, strict=True))
    return result


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_families_start_and_compute_with_the_weights_of_every_update(tmp_path: Path, kind: type, tied: bool) -> None:
    """Each is compared with transformers when it starts."""
    write(tmp_path, kind, tie_word_embeddings=tied)
    engine = start(str(tmp_path))
    for version in (1, 2):
        policy = random_policy(str(tmp_path), torch.float32, seed=version)
        engine.load_weights(checkpoint_tensors(policy.named_parameters()), version)
        require_faithful(engine, policy, "float32", SETTINGS.longest_row)
    engine.close()


def test_a_fresh_engine_generates_what_an_updated_one_does(path: str) -> None:
    updated, fresh = start(path, seed=0), start(path, seed=7)
    policy = random_policy(path, torch.float32, seed=7)
    updated.load_weights(checkpoint_tensors(policy.named_parameters()), 1)
    updated.submit(requests(6))
    fresh.submit(requests(6))
    assert responses_of(updated) == responses_of(fresh)
    updated.close()
    fresh.close()


def test_a_family_that_vllm_computes_with_modules_of_transformers_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": END}
    PhiConfig(**sizes, **words, architectures=["PhiForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(InvalidJob, match=r"no layers of its own for models of class PhiForCausalLM: .* Transformers$"):
        start(str(tmp_path))


def test_heads_that_the_cpu_has_no_kernel_for_are_refused(tmp_path: Path) -> None:
    write(tmp_path, Qwen3Config, head_dim=16)
    with pytest.raises(InvalidJob, match="heads of 16 numbers on the CPU, only of 32, 64"):
        start(str(tmp_path))


def test_a_class_that_vllm_does_not_know_is_refused(tmp_path: Path) -> None:
    write(tmp_path, Qwen3Config, architectures=["MyOwnForCausalLM"])
    with pytest.raises(InvalidJob, match="does not know models of class MyOwnForCausalLM"):
        start(str(tmp_path))


def test_rows_longer_than_the_model_are_refused(path: str) -> None:
    with pytest.raises(InvalidJob, match=f"rows of up to {POSITIONS + 1} tokens.*positions end at {POSITIONS}"):
        start(path, replace(SETTINGS, longest_row=POSITIONS + 1))


def test_blocks_that_do_not_fit_the_kernel_are_refused(path: str) -> None:
    with pytest.raises(InvalidJob, match="blockSize 48"):
        start(path, replace(SETTINGS, block_size=48))


def test_what_only_the_library_refuses_carries_its_reason(path: str) -> None:
    with pytest.raises(InvalidJob, match="vLLM refuses .*max_num_batched_tokens"):
        start(path, replace(SETTINGS, max_batched_tokens=1))


def write(directory: Path, kind: type, **more: object) -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 96,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.15,
        "architectures": [kind.__name__.replace("Config", "ForCausalLM")],
    }
    kind(**{**sizes, **more}).save_pretrained(directory)


def test_eight_turns_compute_little_more_than_the_last_row_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are what there was and 330 tokens more. Whole blocks of 32 are known: with every turn less than one comes
    again, so that of eight it is less than a tenth of a row of 2,644 tokens."""
    from vllm.v1.engine.llm_engine import LLMEngine

    computed, library_step = list[int](), LLMEngine.step

    def step(engine: LLMEngine) -> list:
        outputs = library_step(engine)
        computed.extend(
            len(output.prompt_token_ids) - output.num_cached_tokens for output in outputs if output.finished
        )
        return outputs

    monkeypatch.setattr(LLMEngine, "step", step)
    write(tmp_path, Qwen3Config, max_position_embeddings=4096, vocab_size=VOCABULARY)
    engine, row, drawn = start(str(tmp_path), replace(SETTINGS, longest_row=2800)), np.arange(2, 6), 0
    computed.clear()
    for turn in range(8):
        row = np.concatenate([row, np.full(330, 5 + turn)])
        engine.submit(replace(requests(1), turns=np.array([turn]), prompts=Column.ragged([row])))
        ended = engine.advance()
        engine.hold(ended.row_ids)
        row, drawn = np.concatenate([row, ended.response_ids.values]), drawn + len(ended.response_ids.values)
    engine.close()
    assert len(computed) == 8 and len(row) >= 2644
    assert sum(computed) + drawn <= 1.1 * len(row)


def test_both_engines_draw_the_same(path: str) -> None:
    """A draw is the same function of seed, row, turn, position and probabilities; these agree to the last digits."""
    result = []
    for engine in (start(path), TransformersRollout(random_policy(path, torch.float32, 0), CPU, (END,))):
        responses = generate(engine, [np.arange(2, 42)], Sampling(temperature=0.9, seed=2), np.arange(12), 12, 16)
        result.append([row.tolist() for row in responses.response_ids.to_list()])
        engine.close()
    assert result[0] == result[1]
