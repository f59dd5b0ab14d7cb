"""How long advantages and losses take for one large batch: 8,192 rows, ragged up to 4,096 tokens, float32.

    python benchmarks/algorithms.py [--rows 8192] [--max-tokens 4096] [--device cpu] [--threads 1] [--repeats 3]

Every line gives the CPU time of the least disturbed call (wall time on an accelerator), the throughput, and the time
as a multiple of one `exp` over the same tokens: about a single pass through memory, and what compares between machines.
`gae, loop over time` is the padded loop that most systems run, for comparison with `gae`. Objectives run forward,
backward and metrics over the micro-batches that an engine would make.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_worker.algorithms import kl, policy_objective, value_objective
from rljob_worker.algorithms.advantages import gae, grpo_advantages, whiten
from rljob_worker.algorithms.policy_losses import ppo_clip
from rljob_worker.algorithms.segments import discounted_suffix_sum, segment_sum
from rljob_worker.algorithms.token_rewards import token_level_rewards
from rljob_worker.algorithms.value_losses import clipped_value_loss

GROUP_SIZE = 8
TOKENS_PER_MICRO_BATCH = 262_144


@dataclass(frozen=True)
class Data:
    """One batch on the device; per-token tensors are packed, [tokens]."""

    lengths: Tensor
    row: Tensor
    mask: Tensor
    rewards: Tensor
    group_ids: Tensor
    log_probs: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.lengths)


def make_data(num_rows: int, max_tokens: int, device: str) -> Data:
    """Lengths are uniform up to `max_tokens`; every token is an action."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, max_tokens + 1, (num_rows,), generator=generator)
    row = torch.repeat_interleave(torch.arange(num_rows), lengths)

    def tokens(scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return (torch.randn(len(row), generator=generator) * scale + shift).to(device)

    log_probs = tokens(0.3, -1.0)
    return Data(
        lengths=lengths.to(device),
        row=row.to(device),
        mask=torch.ones(len(row), dtype=torch.bool, device=device),
        rewards=torch.randint(0, 2, (num_rows,), generator=generator).float().to(device),
        group_ids=(torch.arange(num_rows) // GROUP_SIZE).to(device),
        log_probs=log_probs,
        old_log_probs=log_probs + tokens(0.1),
        ref_log_probs=log_probs + tokens(0.1),
        advantages=tokens(),
        values=tokens(),
        returns=tokens(),
    )


def gae_loop_over_time(data: Data, max_tokens: int) -> Tensor:
    """The usual form: pad, then one Python iteration per time step over all rows. γ = λ = 1."""
    present = torch.arange(max_tokens, device=data.row.device)[:, None] < data.lengths  # [time, rows]
    padded = torch.zeros((max_tokens, data.num_rows), device=data.row.device)
    rewards, values = padded.T.contiguous(), padded.T.contiguous()
    values[present.T] = data.values
    rewards[torch.arange(data.num_rows, device=data.row.device), data.lengths - 1] = data.rewards
    rewards, values = rewards.T.contiguous(), values.T.contiguous()
    advantage = following = torch.zeros(data.num_rows, device=data.row.device)
    for t in reversed(range(max_tokens)):
        here = present[t]
        delta = rewards[t] + following - values[t]
        advantage = torch.where(here, delta + advantage, advantage)
        following = torch.where(here, values[t], following)
        padded[t] = advantage
    return padded.T[present.T]


def packed_gae(data: Data) -> Tensor:
    rewards = token_level_rewards(data.rewards, None, 0.0, data.row, data.mask)
    return gae(rewards, data.values, data.row, data.mask, num_rows=data.num_rows, gamma=1.0, lam=1.0)[0]


def differentiated(loss: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[], Tensor]:
    """Forward and backward of a token loss."""

    def run() -> Tensor:
        leaf = at.detach().requires_grad_()
        loss(leaf).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    return run


def micro_batches(data: Data) -> list[dict[str, Any]]:
    """Rows in order, cut where the next row would pass the token limit."""
    parts, start, first = [], 0, 0
    ends = data.lengths.cumsum(0).tolist()
    for index, end in enumerate(ends):
        if index + 1 == len(ends) or ends[index + 1] - start > TOKENS_PER_MICRO_BATCH:
            parts.append({"tokens": slice(start, end), "first": first, "num_rows": index + 1 - first})
            start, first = end, index + 1
    return parts


def objective_over(data: Data, objective: Any, output: str, count: float) -> Callable[[], float]:
    """All micro-batches of one optimizer step through an objective, forward, backward and metrics."""
    parts = micro_batches(data)

    def run() -> float:
        total = 0.0
        for part in parts:
            tokens = part["tokens"]
            leaf = getattr(data, output)[tokens].detach().requires_grad_()
            columns = {name: getattr(data, name)[tokens] for name in objective.columns if name != "response_mask"}
            columns["response_mask"] = data.mask[tokens]
            outputs = {"log_probs": None, "values": None, output: leaf}
            batch = SimpleNamespace(
                row=data.row[tokens] - part["first"],
                num_rows=part["num_rows"],
                columns=columns,
                entropy=None,
                **outputs,
            )
            loss, _ = objective(batch, {"policy": count, "kl": count, "value": count})
            loss.backward()
            total += float(loss.detach())
        return total

    return run


def cases(data: Data, max_tokens: int) -> dict[str, Callable[[], object]]:
    """What is timed, by the name it is printed under."""
    grpo = AlgorithmSpec.model_validate({"name": "GRPO", "kl": {"coefficient": 0.001}})
    ppo = AlgorithmSpec.model_validate({"name": "PPO"})
    policy = policy_objective(grpo, max_response_tokens=max_tokens, has_old_log_probs=True)
    count = float(len(data.row))
    old, ref, advantages = data.old_log_probs, data.ref_log_probs, data.advantages
    return {
        "exp (unit)": lambda: data.log_probs.exp(),
        "segment_sum": lambda: segment_sum(data.log_probs, data.row, data.num_rows),
        "discounted_suffix_sum": lambda: discounted_suffix_sum(data.values, data.lengths, 0.95),
        "grpo_advantages (rows)": lambda: grpo_advantages(data.rewards, data.group_ids),
        "token_level_rewards": lambda: token_level_rewards(data.rewards, data.values, 0.1, data.row, data.mask),
        "gae": lambda: packed_gae(data),
        "gae, loop over time": lambda: gae_loop_over_time(data, max_tokens),
        "whiten": lambda: whiten(data.advantages, data.mask),
        "ppo_clip + backward": differentiated(
            lambda x: ppo_clip(x, old, advantages, clip_low=0.2, clip_high=0.2).losses, data.log_probs
        ),
        "k3 + backward": differentiated(lambda x: kl.k3(x, ref, old), data.log_probs),
        "k3_weighted + backward": differentiated(lambda x: kl.k3_weighted(x, ref, old), data.log_probs),
        "clipped_value_loss + backward": differentiated(
            lambda x: clipped_value_loss(x, data.values, data.returns, 0.2).losses, data.values
        ),
        "PolicyObjective, whole step": objective_over(data, policy, "log_probs", count),
        "ValueObjective, whole step": objective_over(data, value_objective(ppo), "values", count),
    }


def seconds(case: Callable[[], object], repeats: int, device: str) -> float:
    """Shortest of several calls, after one that warms up: CPU time, which other jobs disturb least, or wall time."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(repeats + 1):
        start = clock()
        case()
        if device != "cpu":
            torch.accelerator.synchronize()
        times.append(clock() - start)
    return min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    data = make_data(options.rows, options.max_tokens, options.device)
    assert torch.allclose(packed_gae(data), gae_loop_over_time(data, options.max_tokens), rtol=1e-3, atol=1e-2)
    print(f"{options.rows} rows, {len(data.row):,} tokens, {options.device}, {options.threads} threads, float32")
    unit = 0.0
    for name, case in cases(data, options.max_tokens).items():
        elapsed = seconds(case, options.repeats, options.device)
        unit = unit or elapsed
        print(f"{name:32} {elapsed:8.3f} s {len(data.row) / elapsed / 1e6:10.0f} Mtokens/s {elapsed / unit:8.1f} x")


if __name__ == "__main__":
    main()
