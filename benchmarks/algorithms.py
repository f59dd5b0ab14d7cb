"""How long advantages and losses take for one large batch: 8,192 rows, ragged up to 4,096 tokens, float32.

    python benchmarks/algorithms.py [--rows 8192] [--max-tokens 4096] [--device cpu] [--threads 1] [--repeats 3]
    python benchmarks/algorithms.py --peers

Every line gives the CPU time of the least disturbed call (wall time on an accelerator), the throughput, and the time
as a multiple of one `exp` over the same tokens: about a single pass through memory, and what compares between machines.
`gae, loop over time` is the padded loop that most systems run, for comparison with `gae`. Objectives run forward,
backward and metrics over the micro-batches that an engine would make. With `--peers` ours and the loops of verl and
siiRL alternate in the venv of those two instead: `peer_functions/loop_timing.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from peer_functions import venv
from torch import Tensor

from rljob_api.v1alpha1.algorithm import AlgorithmSpec, CorrectionSpec, LossSpec
from rljob_worker.algorithms import KL_ESTIMATORS, POLICY_LOSSES, policy_objective, value_objective
from rljob_worker.algorithms import advantages as adv
from rljob_worker.algorithms import policy_losses as pol
from rljob_worker.algorithms.advantages import gae, grpo_advantages, no_reduce, whiten
from rljob_worker.algorithms.advantages.token_rewards import token_level_rewards
from rljob_worker.algorithms.corrections import correct
from rljob_worker.algorithms.policy_losses import PolicyTokens, PreparedPolicyLoss
from rljob_worker.algorithms.segments import discounted_suffix_sum, segment_sum
from rljob_worker.algorithms.values.losses import clipped_value_loss

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


def policy_losses(data: Data) -> dict[str, Callable[[], object]]:
    """Every policy loss, forward and backward, over the whole batch at once; and what it prepares."""
    found: dict[str, Callable[[], object]] = {}
    held_back = torch.zeros(len(data.row), dtype=torch.bool, device=data.row.device)

    def run(name: str, options: LossSpec) -> Callable[[], object]:
        def losses(x: Tensor) -> Tensor:
            columns = {"held_back": held_back}
            tokens = PolicyTokens(x, data.old_log_probs, data.advantages, data.row, data.num_rows, columns)
            return POLICY_LOSSES[name](tokens, options).losses

        return differentiated(losses, data.log_probs)

    def prepare(loss: PreparedPolicyLoss, options: LossSpec) -> Callable[[], object]:
        positions = torch.arange(len(data.row), device=data.row.device)
        tokens = pol.MiniBatchTokens(data.old_log_probs, data.advantages, data.row, positions)
        return lambda: loss.prepare(tokens, options, no_reduce, 0)

    for name in POLICY_LOSSES.names():
        options = AlgorithmSpec.model_validate({"name": "GRPO", "loss": {"name": name}}).loss
        loss = POLICY_LOSSES[name]
        found[f"{name} + backward"] = run(name, options)
        if isinstance(loss, PreparedPolicyLoss) and data.row.device.type == "cpu":
            found[f"{name}, prepare"] = prepare(loss, options)
    return found


def estimators(data: Data) -> dict[str, Callable[[], object]]:
    """Every advantage estimator as rows or tokens become tokens."""
    rewards, groups = data.rewards, data.group_ids
    tokens = token_level_rewards(rewards, None, 0.0, data.row, data.mask)
    rest = {"num_rows": data.num_rows}
    position = torch.arange(len(data.row), device=data.row.device)
    agents, turns = (position // 64) % 2, position // 128
    by_row = {
        "GRPO": lambda: grpo_advantages(rewards, groups),
        "RLOO": lambda: adv.rloo_advantages(rewards, groups),
        "OPO": lambda: adv.opo_advantages(rewards, data.lengths, groups),
        "GRPOPassK": lambda: adv.pass_at_k_advantages(rewards, groups),
        "CPGD": lambda: adv.cpgd_advantages(rewards, groups, weighting="ClipFilter"),
    }
    found: dict[str, Callable[[], object]] = {
        name: lambda estimate=estimate: torch.where(data.mask, estimate()[data.row], 0.0)
        for name, estimate in by_row.items()
    }
    return found | {
        "ReinforcePlusPlus": lambda: adv.discounted_returns(tokens, data.row, data.mask, gamma=0.99, **rest),
        "ReMax": lambda: adv.remax_advantages(tokens, rewards, data.row, data.mask, **rest),
        "MARFT": lambda: adv.marft_gae(
            tokens, data.values, data.row, data.mask, agents, turns, gamma=0.99, lam=0.95, **rest
        ),
    }


def corrections(data: Data) -> dict[str, Callable[[], object]]:
    """Every correction at its own level."""

    def run(method: str) -> Callable[[], object]:
        spec = CorrectionSpec.model_validate({"method": method})
        return lambda: correct(data.log_probs, data.old_log_probs, data.mask, data.row, data.num_rows, spec)

    return {
        method: run(method) for method in ("TruncatedImportance", "MaskedImportance", "ICEPOP", "SequenceRejection")
    }


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
                full_kl=None,
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
    old, ref = data.old_log_probs, data.ref_log_probs
    return {
        "exp (unit)": lambda: data.log_probs.exp(),
        "segment_sum": lambda: segment_sum(data.log_probs, data.row, data.num_rows),
        "discounted_suffix_sum": lambda: discounted_suffix_sum(data.values, data.lengths, 0.95),
        "grpo_advantages (rows)": lambda: grpo_advantages(data.rewards, data.group_ids),
        "token_level_rewards": lambda: token_level_rewards(data.rewards, data.values, 0.1, data.row, data.mask),
        "gae": lambda: packed_gae(data),
        "gae, loop over time": lambda: gae_loop_over_time(data, max_tokens),
        "whiten": lambda: whiten(data.advantages, data.mask),
        **estimators(data),
        **policy_losses(data),
        **corrections(data),
        **{
            f"{name} + backward": differentiated(lambda x, name=name: KL_ESTIMATORS[name](x, ref, old), data.log_probs)
            for name in KL_ESTIMATORS.names()
            if name != "Full"
        },
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
    parser.add_argument("--peers", action="store_true", help="against the loops of verl and siiRL")
    options = parser.parse_args()
    if options.peers:
        venv.run("loop_timing.py", *map(str, (options.rows, options.max_tokens, options.repeats)), with_ours=True)
        return
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
