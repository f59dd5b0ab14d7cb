"""Our functions and the loops of verl and siiRL in turn, in one process of their venv; `algorithms.py` runs it.

    loop_timing.py ROWS MAX_TOKENS REPEATS

float32, lengths 1 + (MAX_TOKENS - 1) · u³ with u uniform: a quarter of MAX_TOKENS in the mean. Advantages of rows are
timed as rows become tokens, and without that (`rows alone`, one token per row): the loop is over rows. Prints medians
of CPU seconds, the spread of each (largest over smallest) and the ratio of the medians.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from siirl.dag_worker import core_algos as siirl
from verl.trainer.ppo import core_algos as verl

from rljob_worker.algorithms import advantages as ours

GROUP_SIZE = 8
CONFIG = SimpleNamespace(get=lambda name, default: default)
Call = Callable[[], Any]
Cases = dict[str, tuple[str, Call, Call]]


class Data:
    """One batch, packed for us and padded for them."""

    def __init__(self, num_rows: int, max_tokens: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = 1 + ((max_tokens - 1) * torch.rand(num_rows, generator=generator) ** 3).long()
        self.num_rows, self.width = num_rows, int(self.lengths.max())
        self.row = torch.repeat_interleave(torch.arange(num_rows), self.lengths)
        self.mask = torch.ones(len(self.row), dtype=torch.bool)
        self.rewards = torch.randn(num_rows, generator=generator)
        self.group_ids = torch.arange(num_rows) // GROUP_SIZE
        self.padded_mask = (torch.arange(self.width)[None] < self.lengths[:, None]).float()
        self.padded_rewards = torch.zeros(num_rows, self.width)
        self.padded_rewards[torch.arange(num_rows), self.lengths - 1] = self.rewards
        self.index = self.group_ids.numpy()


def cases(data: Data) -> Cases:
    """Name -> whose loop, ours, theirs."""
    result: Cases = {}
    for name, system, function, mine, options in over_rows(data):
        loop = functools.partial(getattr(system, f"compute_{function}_outcome_advantage"), **options)
        result |= by_row(data, name, "verl" if system is verl else "siiRL", mine, loop)
    return result


def over_rows(data: Data) -> list[tuple[str, Any, str, Call, dict[str, object]]]:
    """Estimators that give every token of a row the same advantage: name, system, its function, ours, its options."""
    rewards, groups = data.rewards, data.group_ids

    def cpgd(weighting: str) -> Call:
        return lambda: ours.cpgd_advantages(rewards, groups, weighting=weighting)

    def grpo() -> object:
        return ours.grpo_advantages(rewards, groups)

    clip_filter: dict[str, object] = {"weight_factor_in_cpgd": "clip_filter_like_weight"}
    return [
        ("GRPO", verl, "grpo", grpo, {}),
        ("GRPO, siiRL", siirl, "grpo", grpo, {}),
        ("RLOO", verl, "rloo", lambda: ours.rloo_advantages(rewards, groups), {}),
        ("OPO", verl, "opo", lambda: ours.opo_advantages(rewards, data.lengths, groups), {}),
        ("GRPOPassK", verl, "grpo_passk", lambda: ours.pass_at_k_advantages(rewards, groups), {"config": CONFIG}),
        ("CPGD", siirl, "cpgd", cpgd("StandardDeviation"), {}),
        ("CPGD, ClipFilter", siirl, "cpgd", cpgd("ClipFilter"), clip_filter),
    ]


def by_row(data: Data, name: str, who: str, mine: Call, loop: Callable[..., object]) -> Cases:
    """The rows alone, and rows that become tokens."""
    one = torch.ones(data.num_rows, 1)

    def on_tokens() -> object:
        return torch.where(data.mask, mine()[data.row], 0.0)

    return {
        f"{name}, rows alone": (who, mine, lambda: loop(data.rewards[:, None].clone(), one, data.index)),
        name: (who, on_tokens, lambda: loop(data.padded_rewards.clone(), data.padded_mask, data.index)),
    }


def timed(call: Call) -> float:
    start = time.process_time()  # of one thread; other jobs disturb it least
    call()
    return time.process_time() - start


def main() -> None:
    num_rows, max_tokens, repeats = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    data = Data(num_rows, max_tokens)
    print(f"{num_rows} rows, {len(data.row):,} tokens, width {data.width}, float32, 1 thread, {repeats} repeats")
    print(
        "| function | loop of | theirs, s | spread | ours, s | spread | theirs ÷ ours |\n|---|---|---|---|---|---|---|"
    )
    for name, (who, mine, theirs) in cases(data).items():
        mine()
        pairs = [(timed(theirs), timed(mine)) for _ in range(repeats)]
        cells = []
        for seconds in zip(*pairs, strict=True):
            cells += [f"{statistics.median(seconds):.4f}", f"{max(seconds) / min(seconds):.1f}"]
        ratio = statistics.median(pair[0] for pair in pairs) / statistics.median(pair[1] for pair in pairs)
        print(f"| {name} | {who} | {cells[0]} | {cells[1]} | {cells[2]} | {cells[3]} | {ratio:.0f} |", flush=True)


if __name__ == "__main__":
    main()
