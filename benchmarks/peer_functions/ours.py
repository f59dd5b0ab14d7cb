"""Our functions on the batches that the peers get, under the same names; values and gradients packed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from peer_functions.batches import Arrays
from rljob_api.v1alpha1.algorithm import CorrectionSpec, LossSpec
from rljob_worker.algorithms import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES, KLController
from rljob_worker.algorithms import advantages as adv
from rljob_worker.algorithms import policy_losses as pol
from rljob_worker.algorithms.advantages.token_rewards import token_level_rewards
from rljob_worker.algorithms.aggregation import aggregate
from rljob_worker.algorithms.corrections import correct
from rljob_worker.algorithms.segments import segment_count
from rljob_worker.algorithms.values.losses import clipped_value_loss
from rljob_worker.engines.log_probs.linear import LastLayer, linear_log_probs

GAMMA, LAMBDA, LOW, HIGH, DUAL = 0.97, 0.9, 0.2, 0.28, 3.0
Result = tuple[Tensor, Tensor | None]
TokenLoss = Callable[[Tensor], Tensor]


class Ours:
    """A batch as our functions want it: `at` picks the actions."""

    def __init__(self, arrays: Arrays) -> None:
        self.columns = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.lengths = self.columns["lengths"]
        self.num_rows = len(self.lengths)
        self.row = torch.repeat_interleave(torch.arange(self.num_rows), self.lengths)
        self.mask = self.columns["mask"].bool()
        self.at = self.mask.nonzero().squeeze(1)
        self.action_row = self.row[self.at]
        self.num_actions = segment_count(self.action_row, self.num_rows)
        self.token_rewards = token_level_rewards(self["rewards"], None, 0.0, self.row, self.mask)

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def spread(self, actions: Tensor) -> Tensor:
        return torch.zeros(len(self.row), dtype=torch.float64).index_copy(0, self.at, actions.double())

    def on_actions(self, by_row: Tensor) -> Result:
        return torch.where(self.mask, by_row[self.row], 0.0), None

    def whitened(self, advantages: Tensor) -> Result:
        return adv.whiten(advantages, self.mask), None

    def differentiated(self, loss: TokenLoss, aggregation: str | None = "TokenMean", at: str = "log_probs") -> Result:
        """Value and gradient of losses at actions, aggregated unless `aggregation` is None."""
        leaf = self[at].clone().requires_grad_()
        losses = loss(leaf[self.at])
        losses = losses if aggregation is None else self.aggregated(losses, aggregation)
        losses.sum().backward()
        assert leaf.grad is not None
        return (self.spread(losses.detach()) if aggregation is None else losses.detach()), leaf.grad

    def aggregated(self, losses: Tensor, name: str) -> Tensor:
        aggregation = AGGREGATIONS[name](float(self.lengths.max()))
        count = float(aggregation.units(self.num_actions).sum())
        return aggregate(aggregation, losses, self.action_row, self.num_actions, count)


def advantages(batch: Ours) -> dict[str, Callable[[], Result]]:
    rewards, groups = batch["rewards"], batch["group_ids"]
    shape = {"num_rows": batch.num_rows}

    def cpgd(weighting: str) -> Callable[[], Result]:
        return lambda: batch.on_actions(adv.cpgd_advantages(rewards, groups, weighting=weighting))

    def rloo() -> Result:
        return batch.on_actions(adv.rloo_advantages(rewards, groups))

    def grpo(*, normalize_std: bool = True) -> Result:
        return batch.on_actions(adv.grpo_advantages(rewards, groups, normalize_std=normalize_std))

    returns = {"row": batch.row, "mask": batch.mask, **shape}
    return {
        "GAE": lambda: batch.whitened(
            adv.gae(batch.token_rewards, batch["values"], **returns, gamma=GAMMA, lam=LAMBDA)[0]
        ),
        "GRPO": grpo,
        "GRPO vectorised": grpo,
        "DrGRPO": lambda: grpo(normalize_std=False),
        "RLOO": rloo,
        "RLOO vectorised": rloo,
        "OPO": lambda: batch.on_actions(adv.opo_advantages(rewards, batch.num_actions, groups)),
        "GRPOPassK": lambda: batch.on_actions(adv.pass_at_k_advantages(rewards, groups)),
        "ReinforcePlusPlusBaseline": lambda: batch.whitened(grpo(normalize_std=False)[0]),
        "ReinforcePlusPlus": lambda: batch.whitened(
            adv.discounted_returns(batch.token_rewards, **returns, gamma=GAMMA)
        ),
        "ReMax": lambda: (adv.remax_advantages(batch.token_rewards, batch["baseline_rewards"], **returns), None),
        "CPGD StandardDeviation": cpgd("StandardDeviation"),
        "CPGD ClipFilter": cpgd("ClipFilter"),
        "CPGD Uniform": cpgd("Uniform"),
        "MARFT returns": lambda: marft(batch),
        "Whitening": lambda: batch.whitened(batch["advantages"]),
    }


def marft(batch: Ours) -> Result:
    """Three rows of the batch are the turns of one trajectory, the last turn first; two agents share a turn."""
    rows = batch.num_rows // 3 * 3
    tokens = int(batch.lengths[:rows].sum())
    row, lengths = batch.row[:tokens], batch.lengths[:rows]
    position = torch.arange(tokens) - (lengths.cumsum(0) - lengths)[row]
    agents = (position >= ((lengths + 1) // 2)[row]).long()
    last = torch.ones(tokens, dtype=torch.bool)
    last[:-1] = (row[1:] != row[:-1]) | (agents[1:] != agents[:-1])
    rewards = torch.where(last, batch["rewards"][row], 0.0)
    _, returns = adv.marft_gae(
        rewards,
        batch["values"][:tokens],
        row // 3,
        torch.ones(tokens),
        agents,
        -row,
        num_rows=rows // 3,
        gamma=GAMMA,
        lam=LAMBDA,
    )
    zeros = torch.zeros(len(batch.row), dtype=torch.float64)
    zeros[:tokens] = returns
    return zeros, None


def losses(batch: Ours) -> dict[str, Callable[[], Result]]:
    old, given, by_row = (batch[name][batch.at] for name in ("old_log_probs", "advantages", "row_advantages"))
    rows = {"row": batch.action_row, "num_rows": batch.num_rows}
    clips = {"clip_low": LOW, "clip_high": HIGH}

    def ppo(aggregation: str, dual_clip: float | None = None) -> Callable[[], Result]:
        return lambda: batch.differentiated(
            lambda x: pol.ppo_clip(x, old, given, **clips, dual_clip=dual_clip).losses, aggregation
        )

    def token(loss: Callable[[Tensor], pol.PolicyTokenLosses], aggregation: str = "TokenMean") -> Callable[[], Result]:
        return lambda: batch.differentiated(lambda x: loss(x).losses, aggregation)

    def held_back(name: str, **options: float) -> Tensor:
        tokens = pol.MiniBatchTokens(batch["log_probs"][batch.at], given, batch.action_row, batch.at)
        spec = LossSpec.model_validate({"name": name, **options})
        prepared = POLICY_LOSSES[name]
        assert isinstance(prepared, pol.PreparedPolicyLoss)
        return prepared.prepare(tokens, spec, adv.no_reduce, 0)["held_back"]

    wide = {"clip_low": 0.99, "clip_high": 99.0}
    clip_cov = held_back("ClipCov", covarianceFraction=1.0, covarianceLow=0.1, covarianceHigh=5.0)
    kl_cov = held_back("KLCov", covarianceFraction=0.1)
    temperatures = {"temperature_positive": 1.0, "temperature_negative": 1.05}
    return {
        "PPOClip": ppo("TokenMean"),
        **{f"PPOClip {name}": ppo(name) for name in AGGREGATIONS.names()},
        "PPOClip dual": ppo("TokenMean", DUAL),
        "GSPO": token(lambda x: pol.gspo(x, old, by_row, **rows, **clips), "SequenceMeanTokenMean"),
        "GSPOToken": token(lambda x: pol.gspo_token(x, old, given, **rows, **clips), "SequenceMeanTokenMean"),
        "GMPO": token(lambda x: pol.gmpo(x, old, by_row, **rows, **clips), "SequenceMeanTokenMean"),
        "GPG": token(lambda x: pol.reinforce(x, given)),
        "Reinforce": token(lambda x: pol.reinforce(x, given)),
        "CISPO": token(lambda x: pol.cispo(x, old, given, clip_high=HIGH)),
        "CPGD": token(lambda x: pol.cpgd(x, old, given, **clips, drift_coefficient=0.0, drift_clip=2.0)),
        "ClipCov": token(lambda x: pol.clip_cov(x, old, given, clip_cov, **wide)),
        "KLCov": token(lambda x: pol.kl_cov(x, old, given, kl_cov, kl_coefficient=0.7)),
        "SAPO": token(lambda x: pol.sapo(x, old, given, **temperatures), "SequenceMeanTokenMean"),
        "DPPOTV": token(lambda x: pol.dppo_tv(x, old, given, divergence_threshold=0.15)),
        "DPPOKL": token(lambda x: pol.dppo_kl(x, old, given, divergence_threshold=0.05)),
    }


def others(batch: Ours) -> dict[str, Callable[[], Result]]:
    ref, old = (batch[name][batch.at] for name in ("ref_log_probs", "old_log_probs"))
    targets = batch["returns"][batch.at], batch["old_values"][batch.at]

    def kl(name: str, aggregation: str | None = None) -> Callable[[], Result]:
        return lambda: batch.differentiated(lambda x: KL_ESTIMATORS[name](x, ref, old), aggregation)

    def aggregated(name: str) -> Callable[[], Result]:
        return lambda: batch.differentiated(lambda x: x, name, "advantages")

    def value() -> Result:
        returns, old_values = targets
        return batch.differentiated(
            lambda x: clipped_value_loss(x, old_values, returns, 0.2).losses, "TokenMean", "values"
        )

    def correction(method: str, level: str, lower: float, upper: float, *, keep: bool = False) -> Callable[[], Result]:
        spec = CorrectionSpec.model_validate({"method": method, "level": level, "lower": lower, "upper": upper})
        columns = (batch["log_probs"], batch["rollout_log_probs"], batch.mask, batch.row, batch.num_rows)

        def run() -> Result:
            result = correct(*columns, spec)[0]
            return (result.keep.double() if keep else result.weights), None

        return run

    return {
        "Clipped value": value,
        "KL in reward": lambda: (
            token_level_rewards(
                batch["rewards"], batch["old_log_probs"] - batch["ref_log_probs"], 0.1, batch.row, batch.mask
            ),
            None,
        ),
        "KLController": lambda: (
            torch.tensor(KLController(0.2, 6.0, 10_000).update(7.0, 256).coefficient, dtype=torch.float64),
            None,
        ),
        "Entropy": lambda: (mean_entropy(batch["logits"][batch.at]), None),
        **{name: aggregated(name) for name in AGGREGATIONS.names()},
        **{name: kl(name) for name in KL_ESTIMATORS.names() if name != "Full"},
        "K3 in loss": kl("K3", "TokenMean"),
        "K3Weighted in loss": kl("K3Weighted", "TokenMean"),
        "TruncatedImportance Token": correction("TruncatedImportance", "Token", 0.0, 1.2),
        "TruncatedImportance Sequence": correction("TruncatedImportance", "Sequence", 0.0, 1.2),
        "ICEPOP": correction("ICEPOP", "Token", 0.8, 1.2),
        "SequenceRejection SequenceGeometric": correction(
            "SequenceRejection", "SequenceGeometric", 0.8, 1.25, keep=True
        ),
    }


def results(arrays: Arrays) -> dict[str, np.ndarray]:
    """`name|value` and `name|gradient` of every function."""
    batch = Ours(arrays)
    result: dict[str, np.ndarray] = {}
    for name, function in (advantages(batch) | losses(batch) | others(batch)).items():
        value, gradient = function()
        result[f"{name}|value"] = value.numpy()
        if gradient is not None:
            result[f"{name}|gradient"] = gradient.numpy()
    return result


def mean_entropy(logits: Tensor) -> Tensor:
    """Of distributions over words, as training computes it from the last layer; here that passes its input on."""
    words = logits.shape[-1]
    last = LastLayer(logits, torch.eye(words, dtype=logits.dtype))
    entropy = linear_log_probs(last, torch.zeros(len(logits), dtype=torch.int64), 1.0, entropy="Figure").entropy
    assert entropy is not None
    return entropy.mean()
