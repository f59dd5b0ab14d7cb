"""Conversations by chat templates of every behaviour: what is trained on is what the engine saw, with its log-probs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Column
from rljob_worker.conversations.messages import AssistantMessage
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.tests.playing import FunctionWorld
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests import chat_models
from rljob_worker.conversations.rendering.tests.chat_models import tokenizer_with, tool
from rljob_worker.conversations.run_functions.tool_use import answers_of
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.conversations.world import SharedWorld, ToolHandle
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.stages.played.played_rows import played_batch
from rljob_worker.stages.stage import Alone

CPU = torch.device("cpu")
ADD = tool(a="integer")
USER, AGAIN = {"role": "user", "content": "what is 1 + 2?"}, {"role": "user", "content": "sure?"}
CALL = {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
THOUGHT, ASKED = {"reasoning_content": "hm"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWER = {"role": "tool", "name": "add", "tool_call_id": "call_0_0", "content": "3"}
SAID = {"role": "assistant", "content": "3"}
ASKS = "<|im_start|>assistant\n"
ROWS = {
    "HERMES": 1,
    "QWEN": 1,
    "LLAMA": 1,
    "NO_TOOLS": 1,
    "QWEN3_ALL_KEPT": 1,
    "QWEN3": 2,
    "R1": 3,
}
"""Rows that a trajectory has by template: those that drop thoughts rewrite history."""
BOUNDS = Bounds(turns=3, rows=3, response_tokens=400, row_tokens=500)


def examples(name: str) -> list[str]:
    """A conversation as the template renders it while it is played, with a call where it shows tools."""
    template = getattr(chat_models, name)
    thought = THOUGHT if "reasoning_content" in template else {}
    if name == "NO_TOOLS":
        messages, tools = [USER, SAID, AGAIN, SAID], None
    else:
        messages, tools = [USER, ASKED | thought, ANSWER, SAID | thought, AGAIN, SAID | thought], [ADD]
    texts = [
        tokenizer_with(template).apply_chat_template(messages[:length], tools=tools, tokenize=False)
        for length in (-2, None)
    ]
    return [text.replace(ASKS, f"{ASKS}<think>\nhm</think>") for text in texts] if name == "R1" else texts


def taught_model(path: Path, name: str) -> str:
    """A tiny model that has learnt a conversation by the template well enough to call the tool now and then."""
    tokenizer = tokenizer_with(getattr(chat_models, name))
    rows = [torch.tensor(tokenizer.encode(text, add_special_tokens=False))[None] for text in examples(name)]
    config = Qwen3Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=len(tokenizer), max_position_embeddings=512, initializer_range=0.1,
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id, architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(60):
        model(rows[step % 2], labels=rows[step % 2]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    return str(path)


class WatchedEngine(TransformersRollout):
    """Notes what it was asked to continue, by row and turn."""

    def submit(self, requests: Requests) -> None:
        for row, turn, prompt in zip(requests.row_ids, requests.turns, requests.prompt_of, strict=True):
            self.saw[int(row), int(turn)] = requests.prompts.row(int(prompt)).tolist()
        super().submit(requests)

    saw: dict[tuple[int, int], list[int]]


async def asks_again(task: Task, policy: Any, world: Any) -> None:
    """Calls are answered, a turn that was cut off is gone on from, and a user asks again at the end."""
    tools = [ADD] if world.tools else None
    said: AssistantMessage = await policy.chat(None, tools=tools, max_tokens=60)
    if said.tool_calls and not policy.is_over:
        said = await policy.chat(await answers_of(world, said.tool_calls, Counter()), tools=tools, max_tokens=60)
    if not policy.is_over:
        await policy.chat([AGAIN], tools=tools, max_tokens=20)


def played(engine: WatchedEngine, name: str) -> list[Trajectory]:
    shared = SharedWorld(tools={} if name == "NO_TOOLS" else {"add": ToolHandle(ADD, "tool:0")})
    renderer = ChatRenderer(tokenizer_with(getattr(chat_models, name)))
    world = FunctionWorld(lambda session, target, method, arguments: str(arguments))
    tasks = list(Task.of_group([USER], np.arange(3), {}, job_seed=1, group=0, group_size=6))
    player = Conversations(engine, asks_again, renderer, BOUNDS, shared=shared, caller=world)
    try:
        return player.play(Play(tasks, Sampling(seed=3), "step-1", rows_per_trajectory=BOUNDS.rows), Alone())
    finally:
        player.close()


def before_turns(trajectory: Trajectory) -> dict[tuple[int, int], list[int]]:
    """What is recorded before the first sampled token of each turn, by row and turn."""
    recorded = {}
    for at, row in enumerate(trajectory.rows):
        sampled = row.mask.astype(bool)
        for turn in set(row.turn_ids[sampled].tolist()):
            first = int(np.flatnonzero(sampled & (row.turn_ids == turn))[0])
            recorded[trajectory.task.trajectory * BOUNDS.rows + at, turn] = row.sequence()[: len(row.prompt) + first]
    return {key: before.tolist() for key, before in recorded.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_template_are_what_the_engine_saw_with_log_probs_of_the_trainer(tmp_path: Path, name: str):
    path = taught_model(tmp_path, name)
    end = tokenizer_with(getattr(chat_models, name)).eos_token_id
    engine = WatchedEngine(load_policy(path, torch.float32, CPU), CPU, (end,), 1.0, lambda: 1 << 30)
    engine.saw = {}
    trajectories = played(engine, name)
    assert not any(item.failed for item in trajectories), [item.message for item in trajectories]
    called = [item for item in trajectories if item.num_calls]
    assert called or name == "NO_TOOLS", [item.messages for item in trajectories]
    assert max(len(item.rows) for item in trajectories) == ROWS[name]
    recorded = {key: before for item in trajectories for key, before in before_turns(item).items()}
    assert engine.saw == recorded and len(recorded) > len(trajectories)
    spec = make_plan(f"rollout.conversation={{maxRows: {BOUNDS.rows}}}").spec
    prompts = Prompts([np.arange(3)], [""], {}, Column.strings(["s"]))
    batch = played_batch(trajectories, prompts, np.arange(1), spec=spec, version=0)
    settings = TrainSettings(trainable=False, tokens_per_micro_batch=600)
    scored = FSDPEngine(load_policy(path, torch.float32, CPU), settings, CPU).log_probs(batch)
    mask = batch["response_mask"].values.astype(bool)
    np.testing.assert_allclose(scored.values[mask], batch["rollout_log_probs"].values[mask], rtol=1e-5, atol=1e-5)
    assert not batch["rollout_log_probs"].values[~mask].any()
