"""Conversations by chat templates of every behaviour: recorded tokens are what the engine saw, and the trainer computes
the log-probs that the engine recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from rljob_worker.batch import Batch, Column
from rljob_worker.conversations.playing.tests.playing import play, tasks_of
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests import chat_models
from rljob_worker.conversations.rendering.tests.chat_models import tokenizer_with, tool
from rljob_worker.conversations.trajectory import TokenRow
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.settings import TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vocabulary import Vocabulary

CPU = torch.device("cpu")
TOOLS = [tool("add", a="integer", b="integer"), tool("search", text="string")]
CALL = {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
BRIEF = {"role": "system", "content": "Be brief."}
SHOT = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "3", "name": "add"}]
"""A call and its answer, which stand in the prompt."""
TEMPLATES = {
    # by how many rows a trajectory of three turns has
    "HERMES": 1, "QWEN": 1, "QWEN_XML": 1, "LLAMA": 1, "QWEN3_ALL_KEPT": 1, "NO_TOOLS": 1, "NOT_THINKING": 3,
}  # fmt: skip


class WatchedEngine:
    """What an engine was asked to continue, and what it sampled, by row."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._prompts: dict[int, np.ndarray] = {}
        self.seen: dict[int, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, requests: Any) -> None:
        for row_id, prompt in zip(requests.row_ids, requests.prompt_of, strict=True):
            self._prompts[int(row_id)] = requests.prompts.row(prompt)
        self._engine.submit(requests)

    def advance(self, most_steps: int | None = None) -> Any:
        ended = self._engine.advance(most_steps)
        for at, row_id in enumerate(ended.row_ids.tolist()):
            self.seen[row_id].append((self._prompts[row_id], ended.response_ids.row(at)))
        return ended


async def talk(task: Any, policy: Any, world: Any) -> None:
    """Three turns: a question, a tool's answer where the template has tools, and another question."""
    shows_tools = "tool" in task.columns
    tools = TOOLS if shows_tools else None
    await policy.chat(tools=tools, max_tokens=12)
    # a tool that answers with the end of a turn does not end it
    answer = {"role": "tool", "content": "<|im_end|> 3\n\n", "name": "add"}
    await policy.chat([answer if shows_tools else {"role": "user", "content": "go on"}], tools=tools, max_tokens=12)
    await policy.chat([{"role": "user", "content": "and <think>?"}], tools=tools, max_tokens=12)


def ending_policy(folder: Path, vocabulary: int, end: int) -> Any:
    """Random weights, and about one token in six that ends a turn."""
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        initializer_range=0.15,
        tie_word_embeddings=False,
        architectures=["Qwen3ForCausalLM"],
    )
    config.save_pretrained(folder)
    policy = random_policy(str(folder), torch.float32, 0)
    with torch.no_grad():
        policy.model.embed_tokens.weight[:, 0] = 10.0
        policy.lm_head.weight[end, 0] = 1.0
    return policy


def require_recorded(row: TokenRow, seen: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """The row is what the engine was given and what it sampled, and those are its actions."""
    sequence, actions = row.sequence(), np.zeros(len(row.prompt) + row.num_response_tokens, bool)
    for before, sampled in seen:
        end = len(before) + len(sampled)
        assert np.array_equal(sequence[:end], np.concatenate([before, sampled]))
        actions[len(before) : end] = True
    assert np.array_equal(row.mask.astype(bool), actions[len(row.prompt) :])


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_trainer_computes_what_the_engine_recorded(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with(getattr(chat_models, name))
    policy = ending_policy(tmp_path, len(tokenizer), tokenizer.eos_token_id)
    engine = WatchedEngine(
        TransformersRollout(policy, CPU, (tokenizer.eos_token_id,), 1.0, lambda: 1 << 26, Vocabulary.of(tokenizer))
    )
    shot, columns = ([], {}) if name == "NO_TOOLS" else (SHOT, {"tool": "yes"})
    asked = (BRIEF, {"role": "user", "content": "1 + 2?"}, *shot, {"role": "user", "content": "again"})
    tasks = [replace(item, messages=asked) for item in tasks_of("a", "b", group_size=3, columns=columns)]
    bounds = Bounds(turns=3, rows=3, response_tokens=400, row_tokens=1800)
    played = play(talk, tasks, engine, bounds=bounds, renderer=ChatRenderer(tokenizer))
    assert [(item.failed, item.num_turns, len(item.rows)) for item in played] == [(None, 3, TEMPLATES[name])] * 6
    rows = [(item.task.trajectory * 3 + index, row) for item in played for index, row in enumerate(item.rows)]
    for row_id, row in rows:
        require_recorded(row, engine.seen[row_id])
    lasts = {sampled[-1] == tokenizer.eos_token_id for turns in engine.seen.values() for _, sampled in turns}
    assert lasts == {True, False}  # some turns end by themselves, some are cut off
    trainer = FSDPEngine(policy, TrainSettings(trainable=False, precision="Float32", tokens_per_micro_batch=2000), CPU)
    computed = trainer.log_probs(batch_of([row for _, row in rows]))
    recorded = np.concatenate([row.log_probs for _, row in rows])
    actions = np.concatenate([row.mask for _, row in rows]).astype(bool)
    np.testing.assert_allclose(computed.values[actions], recorded[actions], atol=1e-5)
    assert not recorded[~actions].any()


def batch_of(rows: list[TokenRow]) -> Batch:
    """What the trainer reads of rows."""
    columns = {
        "prompt_ids": Column.ragged([row.prompt for row in rows]),
        "response_ids": Column.ragged([row.response_ids for row in rows]),
        "response_mask": Column.ragged([row.mask for row in rows], "uint8"),
    }
    numbers = np.arange(len(rows))
    return Batch(numbers, numbers, columns["prompt_ids"].lengths + columns["response_ids"].lengths, columns)
