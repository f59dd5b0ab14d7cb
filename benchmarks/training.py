"""What the update costs in memory and time: a step beside loops by hand, logits of a real vocabulary, ranks.

    python benchmarks/training.py update [--groups 16] [--micro 4096] [--hidden 256] [--layers 4] [--rounds 5] [--trl]
                                         [--compile] [--states Int8]
    python benchmarks/training.py logits [--tokens 600 1500] [--vocabulary 151936] [--hidden 256] [--ways whole fused]
    python benchmarks/training.py ranks [--ranks 1 2 4] [--hidden 768] [--layers 8] [--held 0]

Every line is measured in processes of its own. Memory is private memory (`private_memory`) beyond what a process had
before, sampled every few milliseconds. `update`: CPU seconds of one thread for the engine's step, a loop written by
hand on the same packed rows, and one on padded rows (`update_speed`), all in this process; with `--trl` also the update
of TRL's GRPO step of the case `ragged` (`grpo_step`) and of ours. `--compile` and `--states` are the engine's, as
`training.compile` and `training.optimizer.states`. `logits`: log-probs and entropies as a figure, forward and backward,
of one micro-batch; the unfused twin makes whole logits, and where `--ways` leaves it out the least that it would take
is said. `ranks`: a model is read from its files, each rank its own rows, and makes two updates of several
micro-batches: weights and optimizer as they are made, and of the second update gradients and peak. `--held`: largest
model in MiB whose gradients stay whole between micro-batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import update_speed
from grpo_step.cases import RAGGED
from private_memory import MIB, give_back_what_is_freed, private_bytes, watched
from transformers import AutoModelForCausalLM, Qwen3Config

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.log_probs.linear import LastLayer, linear_log_probs
from rljob_worker.engines.log_probs.of_tokens import token_log_probs
from rljob_worker.engines.models import WeightFiles, empty_policy
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_of_all
from rljob_worker.engines.tests.ranks import run_fresh_ranks


def logits(_rank: int, fused: bool, tokens: int, hidden: int, vocabulary: int) -> tuple[float, float]:
    """Peak MiB and CPU seconds of one forward and backward."""
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight = torch.randn(vocabulary, hidden).mul_(0.02).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))
    with watched() as peak:
        started = time.process_time()
        if fused:
            log_probs = linear_log_probs(LastLayer(states, weight), targets, 1.0, entropy="Figure").log_probs
        else:
            log_probs, _ = token_log_probs(F.linear(states, weight), targets, 1.0, with_entropy=True)
        log_probs.sum().backward()
        seconds = time.process_time() - started
    return peak.beyond / MIB, seconds


@dataclass(frozen=True, slots=True)
class RankMemory:
    """MiB of one rank."""

    kept: float
    """Weights and optimizer."""
    gradients: float
    """Before the optimizer's step."""
    at_work: float
    """At the peak of an update, beyond weights and optimizer: gradients, activations, gathered layers."""


def update(rank: int, path: str, num_ranks: int, held: int) -> RankMemory:
    """Two updates of a model that is read from its files."""
    give_back_what_is_freed()
    settings = TrainSettings(tokens_per_micro_batch=256, held_bytes=held * MIB)
    before = private_bytes()
    engine = FSDPEngine(
        empty_policy(path, torch.float32), settings, torch.device("cpu"), mesh_of_all(), WeightFiles.find(path)
    )
    assert engine.optimizer is not None
    kept = private_bytes()
    engine.update(rows(rank, num_ranks), PolicyGradient())
    between = private_bytes()  # libraries keep something of their first use
    at_step: list[int] = []
    step = engine.optimizer.step

    def watched_step(agreement: Agreement) -> tuple[float, bool]:
        at_step.append(private_bytes())
        return step(agreement)

    engine.optimizer.step = watched_step  # type: ignore[method-assign]
    with watched() as peak:
        engine.update(rows(rank, num_ranks), PolicyGradient())
    return RankMemory((kept - before) / MIB, (at_step[0] - between) / MIB, peak.beyond / MIB)


def rows(rank: int, num_ranks: int) -> Batch:
    """This rank's part of 32 rows of 64 tokens."""
    rng, count = np.random.default_rng(rank), 32 // num_ranks
    tokens = [Column.ragged([rng.integers(2, 1000, length) for _ in range(count)]) for length in (16, 48)]
    columns = {
        "prompt_ids": tokens[0],
        "response_ids": tokens[1],
        "advantages": Column.from_lengths(rng.normal(size=48 * count), [48] * count),
        "weight": Column.fixed(np.ones(count)),
    }
    return Batch.build(np.arange(count), np.arange(count), columns, tokens[0].lengths + tokens[1].lengths)


def show_logits(options: argparse.Namespace, folder: Path) -> None:
    print(f"vocabulary {options.vocabulary}, hidden {options.hidden}, float32")
    for tokens in options.tokens:
        for way in options.ways:
            shape = (tokens, options.hidden, options.vocabulary)
            ((peak, seconds),) = run_fresh_ranks(
                1, logits, folder / f"{tokens}-{way}", way == "fused", *shape, deadline_seconds=3600
            )
            print(f"{tokens:6} tokens  {way:6} {peak:8.0f} MiB  {seconds:6.2f} CPU s", flush=True)
        if "whole" not in options.ways:
            least = 2 * tokens * options.vocabulary * 4 / MIB
            print(f"{tokens:6} tokens  whole  {least:8.0f} MiB  at least, for logits and their gradient: not run")


def show_ranks(options: argparse.Namespace, folder: Path) -> None:
    heads = options.hidden // 64
    config = Qwen3Config(
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
        vocab_size=8192,
        tie_word_embeddings=True,
    )
    run_fresh_ranks(1, write_model, folder / "writing", config, folder / "model")
    print("ranks  weights and optimizer  gradients  at work at the peak of an update   (MiB, the largest rank)")
    for ranks in options.ranks:
        found = run_fresh_ranks(ranks, update, folder / str(ranks), str(folder / "model"), ranks, options.held)
        kept, gradients, at_work = (max(getattr(each, part.name) for each in found) for part in fields(RankMemory))
        print(f"{ranks:5}  {kept:21.0f}  {gradients:9.0f}  {at_work:7.0f}", flush=True)


def show_update(options: argparse.Namespace, folder: Path) -> None:
    config = Qwen3Config(
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 64,
        head_dim=64,
        vocab_size=8192,
        tie_word_embeddings=True,
    )
    run_fresh_ranks(1, write_model, folder / "writing", config, folder / "model")
    batch = update_speed.rows(options.groups, 128, 128, 1024, 8192)
    chosen = {"compile": options.compile, "states": options.states}
    work = update_speed.Work(str(folder / "model"), batch, options.micro, chosen)
    torch.set_num_threads(1)
    seconds = update_speed.compare(work, options.rounds)
    print(f"{len(batch)} rows, {work.responses} response tokens, micro-batches of {options.micro} tokens")
    for name, found in seconds.items():
        median, least, most = statistics.median(found), min(found), max(found)
        print(f"  {name:8} {median:7.2f} CPU s ({least:.2f}-{most:.2f}), {work.responses / median:7.0f} tokens/s")
    for other in ("by hand", "padded"):
        print(f"  {other} / engine: {' '.join(f'{each:.2f}' for each in update_speed.ratio(seconds, other))}")
    if options.trl:
        show_trl(folder)


def show_trl(folder: Path) -> None:
    """Forward, backward and optimizer of both, per response token: each draws its own rows of one distribution."""
    from grpo_step import ours, theirs  # the peer's environment is only made where it is asked for

    data = folder / "ragged"
    RAGGED.make(data)
    found = {}
    for name, system in (("TRL", theirs), ("rljob", ours)):
        timing = system.run(RAGGED, data, folder, processes=1, threads=1, seed=0)
        seconds = sum(timing.parts[part] for part in ("forward", "backward", "optimizer"))
        found[name] = timing.response_tokens / seconds
        print(f"  {name:8} {seconds:7.2f} s of a step's update, {found[name]:7.0f} tokens/s")
    print(f"  rljob / TRL: {found['rljob'] / found['TRL']:.2f}")


def write_model(_rank: int, config: Qwen3Config, path: Path) -> None:
    """Random weights, in a process that ends."""
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["update", "logits", "ranks"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[600, 1500])
    parser.add_argument("--ways", choices=["whole", "fused"], nargs="+", default=["whole", "fused"])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--held", type=int, default=0)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--micro", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--states", choices=["Float32", "BFloat16", "Int8"], default="Float32")
    options = parser.parse_args()
    parts: dict[str, Callable[[argparse.Namespace, Path], None]] = {
        "update": show_update,
        "logits": show_logits,
        "ranks": show_ranks,
    }
    with tempfile.TemporaryDirectory() as folder:
        parts[options.part](options, Path(folder))


if __name__ == "__main__":
    main()
