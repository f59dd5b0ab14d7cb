"""Speed of one optimizer step: the engine's, a loop written by hand, and the same loop over padded rows.

    python benchmarks/training.py [--groups 16] [--micro 4096] [--hidden 256] [--layers 8] [--rounds 5] [--compile]
                                  [--states Int8]

CPU seconds of one thread, all three in turns in one process. The loops are what one writes with transformers, torch and
nothing else: stock modules, whole logits, one log-softmax, AdamW. The packed one is given the engine's packing and
attention, made beforehand; the padded one pads each micro-batch to its longest row, with as many rows in it as the
budget of tokens allows, in order of length. `--compile` and `--states` are the engine's, as `training.compile` and
`training.optimizer.states`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grpo_step.lengths import log_normal_lengths
from process_usage import cpu_seconds_in_turns
from sized_models import write_model
from transformers import AutoModelForCausalLM

from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.attention.varlen import ATTENTION
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.protocols import TokenBatch
from rljob_worker.engines.tests.ranks import run_fresh_ranks

GROUP = 8
CPU = torch.device("cpu")
VOCABULARY = 8192


class MeanLogProb:
    """-sum(advantage * log_prob) / tokens."""

    columns = ("advantages",)
    mask = None
    outputs = frozenset({"log_probs"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"tokens": float(batch["response_ids"].lengths.sum())}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        return -(tokens.columns["advantages"] * tokens.log_probs).sum() / counts["tokens"], Measured()


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """What all three are given."""

    path: str
    batch: Batch
    tokens: int
    """Of a micro-batch."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine's TrainSettings."""

    @property
    def num_tokens(self) -> np.ndarray:
        return self.batch.lengths("prompt_ids") + self.batch.lengths("response_ids")

    @property
    def responses(self) -> int:
        return int(self.batch["response_ids"].lengths.sum())


def rows(groups: int, prompt: int, mean: int, longest: int, vocabulary: int) -> Batch:
    """Groups of eight rows: prompts of half to one and a half times `prompt`, responses of log-normal lengths."""
    rng = np.random.default_rng(0)
    count = groups * GROUP
    questions = [rng.integers(2, vocabulary, int(rng.integers(prompt // 2, prompt * 3 // 2))) for _ in range(groups)]
    odds = np.asarray(log_normal_lengths(mean, longest))
    lengths = rng.choice(np.arange(1, longest + 1), count, p=odds / odds.sum())
    prompts = Column.ragged([questions[row // GROUP] for row in range(count)])
    responses = Column.ragged([rng.integers(2, vocabulary, length) for length in lengths])
    advantages = Column.from_lengths(rng.normal(size=int(lengths.sum())), lengths)
    columns = {"prompt_ids": prompts, "response_ids": responses, "advantages": advantages}
    return Batch.build(np.arange(count), np.arange(count) // GROUP, columns, prompts.lengths + responses.lengths)


def engine(work: TrainingWork) -> Callable[[], None]:
    settings = TrainSettings(tokens_per_micro_batch=work.tokens, learning_rate=1e-6, **work.options)
    fsdpengine = FSDPEngine(load_policy(work.path, torch.float32, CPU), settings, CPU)
    return lambda: fsdpengine.update(work.batch, MeanLogProb()) and None


def by_hand(work: TrainingWork) -> Callable[[], None]:
    model = AutoModelForCausalLM.from_pretrained(work.path, dtype=torch.float32, attn_implementation=ATTENTION)
    packs = [
        (MicroBatch.of(work.batch, run, CPU), torch.from_numpy(work.batch.column_of("advantages", run).values).float())
        for run in micro_batches(work.num_tokens, work.tokens)
    ]

    def loss(pack: tuple[MicroBatch, torch.Tensor]) -> torch.Tensor:
        rows, advantages = pack
        hidden = model.model(
            input_ids=rows.token_ids, position_ids=rows.positions, use_cache=False, attention_layout=rows.layout
        ).last_hidden_state[0]
        return _loss(model.lm_head(hidden[rows.predicts]), rows.targets, advantages, work)

    return _loop(model, packs, loss)


def padded(work: TrainingWork) -> Callable[[], None]:
    model = AutoModelForCausalLM.from_pretrained(work.path, dtype=torch.float32, attn_implementation="sdpa")
    prompts, responses, advantages = (
        work.batch[name].to_list() for name in ("prompt_ids", "response_ids", "advantages")
    )
    joined = [torch.from_numpy(np.concatenate(pair)) for pair in zip(prompts, responses, strict=True)]
    order = np.argsort(work.num_tokens, kind="stable")
    parts: list[list[int]] = [[]]
    for row in order.tolist():  # ascending: a new row is the longest
        if parts[-1] and (len(parts[-1]) + 1) * len(joined[row]) > work.tokens:
            parts.append([])
        parts[-1].append(row)

    def loss(part: list[int]) -> torch.Tensor:
        ids = torch.nn.utils.rnn.pad_sequence([joined[row] for row in part], batch_first=True)
        lengths = torch.tensor([len(joined[row]) for row in part])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        starts = torch.tensor([len(prompts[row]) for row in part])
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
        predicted = (mask & (torch.arange(ids.shape[1]) >= starts[:, None]))[:, 1:]
        wanted = torch.from_numpy(np.concatenate([advantages[row] for row in part])).float()
        return _loss(logits[predicted], ids[:, 1:][predicted], wanted, work)

    return _loop(model, parts, loss)


def _loss(logits: torch.Tensor, targets: torch.Tensor, advantages: torch.Tensor, work: TrainingWork) -> torch.Tensor:
    log_probs = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
    return -(advantages * log_probs).sum() / work.responses


def _loop(model: torch.nn.Module, parts: list, loss: Callable) -> Callable[[], None]:  # type: ignore[type-arg]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def step() -> None:
        for part in parts:
            loss(part).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(work: TrainingWork, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each step, in turns, after one that does not count."""
    return cpu_seconds_in_turns({"engine": engine(work), "by hand": by_hand(work), "padded": padded(work)}, rounds)


def ratio(seconds: dict[str, list[float]], other: str) -> list[float]:
    """How many times faster the engine's step was, round by round; its median, least and most."""
    result = [theirs / ours for ours, theirs in zip(seconds["engine"], seconds[other], strict=True)]
    return [statistics.median(result), min(result), max(result)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--micro", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--states", choices=["Float32", "BFloat16", "Int8"], default="Float32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path, key_heads = Path(name) / "model", options.hidden // 64
        written = (options.hidden, options.layers, VOCABULARY, path, key_heads)
        run_fresh_ranks(1, write_model, Path(name) / "writing", *written)
        batch = rows(options.groups, 128, 128, 1024, VOCABULARY)
        work = TrainingWork(str(path), batch, options.micro, {"compile": options.compile, "states": options.states})
        torch.set_num_threads(1)
        seconds = compare(work, options.rounds)
    print(f"{len(batch)} rows, {work.responses} response tokens, micro-batches of {options.micro} tokens")
    for name, result in seconds.items():
        median, least, most = statistics.median(result), min(result), max(result)
        print(f"  {name:8} {median:7.2f} CPU s ({least:.2f}-{most:.2f}), {work.responses / median:7.0f} tokens/s")
    for other in ("by hand", "padded"):
        print(f"  {other} / engine: {' '.join(f'{item:.2f}' for item in ratio(seconds, other))}")


if __name__ == "__main__":
    main()
