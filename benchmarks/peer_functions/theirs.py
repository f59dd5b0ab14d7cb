"""The functions of verl, TRL and siiRL; runs in their venv. `theirs.py DIRECTORY` makes results-N.npz of batch-N.npz.

Results are packed as ours, at the response tokens: `system|name|value` and `system|name|gradient`, or
`system|name|error` with what was raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from siirl.dag_worker import core_algos as siirl
from siirl.params.model_args import ActorArguments
from siirl.utils.model_utils import torch_functional as siirl_functional
from trl import GRPOTrainer
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.utils import torch_functional as verl_functional
from verl.workers.config import ActorConfig

GAMMA, LAMBDA, LOW, HIGH, DUAL = 0.97, 0.9, 0.2, 0.28, 3.0
MODES = {
    "TokenMean": "token-mean",
    "SequenceMeanTokenMean": "seq-mean-token-mean",
    "SequenceMeanTokenSum": "seq-mean-token-sum",
    "SequenceMeanTokenSumNorm": "seq-mean-token-sum-norm",
}
KL_NAMES = {"K1": "k1", "AbsK1": "abs", "K2": "k2", "K3": "k3", "K1Straight": "k1+", "K3Straight": "k3+"}
Result = tuple[torch.Tensor, torch.Tensor | None]


class Padded:
    """The batch as they want it: [rows, width], zeros to the right."""

    def __init__(self, path: str) -> None:
        arrays = dict(np.load(path))
        self.lengths = arrays["lengths"]
        self.width = int(self.lengths.max())
        self.present = torch.arange(self.width)[None] < torch.from_numpy(self.lengths)[:, None]
        self.index = arrays["group_ids"]
        self.rewards = torch.from_numpy(arrays["rewards"])
        self.baseline_rewards = torch.from_numpy(arrays["baseline_rewards"])
        self.columns = {
            name: self.pad(torch.from_numpy(arrays[name])) for name in arrays if len(arrays[name]) == self.total
        }
        self.mask = self.columns["mask"].double()

    @property
    def total(self) -> int:
        return int(self.lengths.sum())

    def pad(self, packed: torch.Tensor) -> torch.Tensor:
        padded = packed.new_zeros(len(self.lengths), self.width, *packed.shape[1:])
        padded[self.present] = packed
        return padded

    def packed(self, padded: torch.Tensor) -> torch.Tensor:
        """At the actions, 0 elsewhere."""
        return (padded * self.mask)[self.present]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name].clone()

    @property
    def token_rewards(self) -> torch.Tensor:
        """The reward of a row on its last action."""
        steps = torch.arange(1, self.width + 1) * self.mask
        last = steps.argmax(1)
        rewards = torch.zeros_like(self.mask)
        rewards[torch.arange(len(last)), last] = self.rewards
        return rewards


def actor(low: float = LOW, high: float = HIGH, **more: object) -> ActorConfig:
    fields = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "clip_ratio": low}
    config = ActorConfig(**fields, clip_ratio_low=low, clip_ratio_high=high, **more)
    policy = config.policy_loss
    for name, value in {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}.items():
        object.__setattr__(policy, name, value)
    return config


def siirl_config() -> ActorArguments:
    return ActorArguments(clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=DUAL)


def siirl_duck(low: float = LOW, high: float = HIGH) -> SimpleNamespace:
    """For the functions that refuse their own configuration: an object with its fields."""
    policy = SimpleNamespace(clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=5.0, kl_cov_ratio=0.1, ppo_kl_coef=0.7)
    return SimpleNamespace(clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high, policy_loss=policy)


def differentiated(batch: Padded, loss: Callable[[torch.Tensor], torch.Tensor], at: str = "log_probs") -> Result:
    leaf = batch[at].requires_grad_()
    value = loss(leaf)
    value.sum().backward()
    assert leaf.grad is not None
    value = value if value.dim() == 0 else batch.packed(value)
    return value.detach(), batch.packed(leaf.grad)


def advantage(batch: Padded, result: tuple[torch.Tensor, torch.Tensor]) -> Result:
    return batch.packed(result[0]), None


def verl_advantages(batch: Padded) -> dict[str, Callable[[], Result]]:
    group = {"response_mask": batch.mask, "index": batch.index}
    config = SimpleNamespace(gamma=GAMMA, get=lambda name, default: default)

    def by_group(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], **more: object) -> Callable[[], Result]:
        return lambda: advantage(batch, function(batch.token_rewards, **group, **more))

    return {
        "GAE": lambda: advantage(
            batch, verl.compute_gae_advantage_return(batch.token_rewards, batch["values"], batch.mask, GAMMA, LAMBDA)
        ),
        "GRPO": by_group(verl.compute_grpo_outcome_advantage),
        "GRPO vectorised": by_group(verl.compute_grpo_vectorized_outcome_advantage),
        "DrGRPO": by_group(verl.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False),
        "RLOO": by_group(verl.compute_rloo_outcome_advantage),
        "RLOO vectorised": by_group(verl.compute_rloo_vectorized_outcome_advantage),
        "OPO": by_group(verl.compute_opo_outcome_advantage),
        "GRPOPassK": by_group(verl.compute_grpo_passk_outcome_advantage, config=config),
        "ReinforcePlusPlusBaseline": by_group(verl.compute_reinforce_plus_plus_baseline_outcome_advantage),
        "ReinforcePlusPlus": lambda: advantage(
            batch, verl.compute_reinforce_plus_plus_outcome_advantage(batch.token_rewards, batch.mask, config=config)
        ),
        "ReMax": lambda: advantage(
            batch, verl.compute_remax_outcome_advantage(batch.token_rewards, batch.baseline_rewards, batch.mask)
        ),
        "Whitening": lambda: (batch.packed(verl_functional.masked_whiten(batch["advantages"], batch.mask)), None),
    }


def siirl_advantages(batch: Padded) -> dict[str, Callable[[], Result]]:
    group = {"response_mask": batch.mask, "index": batch.index}

    def by_group(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], **more: object) -> Callable[[], Result]:
        return lambda: advantage(batch, function(batch.token_rewards, **group, **more))

    def cpgd(weight: str) -> Callable[[], Result]:
        return by_group(siirl.compute_cpgd_outcome_advantage, weight_factor_in_cpgd=weight)

    return {
        "GAE": lambda: advantage(
            batch, siirl.compute_gae_advantage_return(batch.token_rewards, batch["values"], batch.mask, GAMMA, LAMBDA)
        ),
        "GRPO": by_group(siirl.compute_grpo_outcome_advantage),
        "DrGRPO": by_group(siirl.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False),
        "CPGD StandardDeviation": cpgd("STD_weight"),
        "CPGD ClipFilter": cpgd("clip_filter_like_weight"),
        "CPGD Uniform": cpgd("naive"),
        "MARFT returns": lambda: marft(batch),
        "Whitening": lambda: (batch.packed(siirl_functional.masked_whiten(batch["advantages"], batch.mask)), None),
    }


def marft(batch: Padded) -> Result:
    """Two agents per turn and three rows to a trajectory, later turns first; see `ours.marft` for the same.

    Results are stored in the integer dtype of the mask: everything is scaled up, and down again.
    """
    scale = 2.0**40
    rows = len(batch.lengths) // 3 * 3
    values, ends = batch["values"][:rows] * scale, torch.from_numpy(batch.lengths[:rows])
    half = (ends + 1) // 2  # tokens of the first agent
    width = batch.width
    columns: dict[str, torch.Tensor] = {}
    steps = torch.arange(width)[None]
    for prefix, start, stop in (("agent_group_0_", half * 0, half), ("", half, ends)):
        taken = (start[:, None] + steps).clamp(max=width - 1)
        mask = (steps < (stop - start)[:, None]).long()
        columns[prefix + "values"] = values.gather(1, taken) * mask
        columns[prefix + "response_mask"] = mask
        rewards = torch.zeros(rows, width, dtype=torch.float64)
        has = stop > start
        rewards[has, (stop - start - 1)[has]] = batch.rewards[:rows][has] * scale
        columns[prefix + "token_level_rewards"] = rewards
    requests = np.repeat(np.arange(rows // 3), 3)
    data = SimpleNamespace(
        batch=columns, non_tensor_batch={"request_id": requests, "traj_len": np.full(rows, 3, np.int64)}
    )
    siirl.compute_marft_gae_advantage_return(data, [0], GAMMA, LAMBDA)
    zeros = torch.zeros(len(batch.lengths), width, dtype=torch.float64)
    for row in range(rows):
        first, last = int(half[row]), int(ends[row])
        zeros[row, :first] = columns["agent_group_0_returns"][row, :first].double() / scale
        zeros[row, first:last] = columns["returns"][row, : last - first].double() / scale
    return zeros[batch.present], None


def losses_of(
    system: Any, batch: Padded, config: object, duck: object, wide: object
) -> dict[str, Callable[[], Result]]:
    """What verl and siiRL both have, under the same names."""
    old, mask = batch["old_log_probs"], batch.mask

    def loss(
        name: str, mode: str = "token-mean", *, config: object = config, by: str = "advantages"
    ) -> Callable[[], Result]:
        function = system.get_policy_loss_fn(name)
        return lambda: differentiated(batch, lambda x: function(old.clone(), x, batch[by], mask, mode, config)[0])

    def kl(name: str) -> Callable[[], Result]:
        return lambda: differentiated(batch, lambda x: system.kl_penalty(x, batch["ref_log_probs"], name))

    def aggregated(mode: str) -> Callable[[], Result]:
        return lambda: differentiated(batch, lambda x: system.agg_loss(x, mask, mode), "advantages")

    def value() -> Result:
        arguments = (batch["returns"], batch["old_values"], mask, 0.2)
        return differentiated(batch, lambda x: system.compute_value_loss(x, *arguments)[0], "values")

    def controller() -> Result:
        adaptive = system.AdaptiveKLController(0.2, 6.0, 10_000)
        adaptive.update(7.0, 256)
        return torch.tensor(adaptive.value, dtype=torch.float64), None

    return {
        "PPOClip dual": loss("vanilla"),
        "GSPOToken": loss("gspo", "seq-mean-token-mean"),
        "GPG": loss("gpg"),
        "ClipCov": loss("clip_cov", config=wide),
        "KLCov": loss("kl_cov", config=duck),
        "GMPO": loss("geo_mean", config=duck, by="row_advantages"),
        "Clipped value": value,
        "KL in reward": lambda: (
            batch.packed(system.compute_rewards(batch.token_rewards, old, batch["ref_log_probs"], 0.1)),
            None,
        ),
        "KLController": controller,
        "Entropy": lambda: (system.compute_entropy_loss(batch["logits"], mask), None),
        **{name: aggregated(mode) for name, mode in MODES.items()},
        **{name: kl(theirs) for name, theirs in KL_NAMES.items()},
    }


def verl_losses(batch: Padded) -> dict[str, Callable[[], Result]]:
    old, mask = batch["old_log_probs"], batch.mask

    def loss(name: str, mode: str, config: ActorConfig) -> Callable[[], Result]:
        function = verl.get_policy_loss_fn(name)
        return lambda: differentiated(batch, lambda x: function(old, x, batch["advantages"], mask, mode, config)[0])

    log_ratio = batch["log_probs"] - batch["rollout_log_probs"]

    def weights(level: str, threshold: str | float) -> Callable[[], Result]:
        return lambda: (
            batch.packed(compute_rollout_correction_weights(log_ratio.clone(), mask, level, threshold)[0]),
            None,
        )

    return {
        **losses_of(verl, batch, actor(), actor(), actor(low=0.99, high=99.0)),
        "CISPO": loss("cispo", "token-mean", actor(low=1.0)),
        "SAPO": loss("sapo", "seq-mean-token-mean", actor(tau_pos=1.0, tau_neg=1.05)),
        "DPPOTV": loss("dppo_tv", "token-mean", actor(low=0.15, high=0.15, clip_ratio_c=20.0)),
        "DPPOKL": loss("dppo_kl", "token-mean", actor(low=0.05, high=0.05, clip_ratio_c=20.0)),
        "Reinforce": lambda: differentiated(
            batch,
            lambda x: verl.compute_policy_loss_reinforce(old, x, batch["advantages"], mask, "token-mean", actor())[0],
        ),
        "TruncatedImportance Token": weights("token", 1.2),
        "TruncatedImportance Sequence": weights("sequence", 1.2),
        "ICEPOP": weights("token", "0.8_1.2"),
        "SequenceRejection SequenceGeometric": lambda: (
            batch.packed(compute_rollout_rejection_mask(log_ratio, mask, "seq_mean_k1", "0.8_1.25")[0]),
            None,
        ),
    }


def siirl_losses(batch: Padded) -> dict[str, Callable[[], Result]]:
    old, mask, config = batch["old_log_probs"], batch.mask, siirl_config()
    return losses_of(siirl, batch, config, siirl_duck(), siirl_duck(0.99, 99.0)) | {
        "CPGD": lambda: differentiated(
            batch,
            lambda x: siirl.compute_policy_loss_cpgd(old, x, batch["advantages"], mask, "token-mean", config)[0],
        ),
    }


def trl_loss(batch: Padded, loss_type: str, **changes: object) -> Callable[[], Result]:
    """`GRPOTrainer._compute_loss` of a trainer that has what the loss looks at."""
    fields = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": loss_type,
        "epsilon_low": LOW,
        "epsilon_high": HIGH,
        "use_vllm": False,
        "max_completion_length": batch.width,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
        "by": "advantages",
        "use_bias_correction_kl": False,
    } | changes
    one = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    arguments = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=fields["use_bias_correction_kl"],
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    metrics = {"train": {name: [] for name in ("kl", "entropy", "cispo_clip_ratio", "clip_ratio/low_mean")}}
    for end in ("high_mean", "region_mean", "low_min", "high_max"):
        metrics["train"][f"clip_ratio/{end}"] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        trainer = SimpleNamespace(
            **fields,
            args=arguments,
            accelerator=one,
            model=SimpleNamespace(training=True),
            _metrics=metrics,
            _get_per_token_logps_and_entropies=lambda *_, **__: (x, torch.zeros_like(x), None),
        )
        ids = torch.zeros(len(batch.lengths), batch.width, dtype=torch.int64)
        inputs = {
            "prompt_ids": ids[:, :0],
            "prompt_mask": ids[:, :0],
            "completion_ids": ids,
            "completion_mask": batch.mask,
            "advantages": batch[str(fields["by"])],
            "old_per_token_logps": batch["old_log_probs"],
            "ref_per_token_logps": batch["ref_log_probs"],
            "num_items_in_batch": batch.mask.sum(),
        }
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    return lambda: differentiated(batch, loss)


def trl_losses(batch: Padded) -> dict[str, Callable[[], Result]]:
    batch.columns["zero"] = torch.zeros_like(batch["advantages"])
    weighted = {"beta": 1.0, "by": "zero"}
    return {
        "PPOClip": trl_loss(batch, "bnpo"),
        "PPOClip TokenMean": trl_loss(batch, "dapo"),
        "PPOClip SequenceMeanTokenMean": trl_loss(batch, "grpo"),
        "PPOClip SequenceMeanTokenSum": trl_loss(batch, "luspo"),
        "PPOClip SequenceMeanTokenSumNorm": trl_loss(batch, "dr_grpo"),
        "GSPO": trl_loss(batch, "grpo", importance_sampling_level="sequence", by="row_advantages"),
        "CISPO": trl_loss(batch, "cispo", epsilon_high=1.0 + HIGH),
        "SAPO": trl_loss(batch, "sapo"),
        "K3 in loss": trl_loss(batch, "bnpo", **weighted),
        "K3Weighted in loss": trl_loss(batch, "bnpo", use_bias_correction_kl=True, **weighted),
    }


def results(batch: Padded) -> dict[str, np.ndarray]:
    systems = {
        "verl": verl_advantages(batch) | verl_losses(batch),
        "TRL": trl_losses(batch),
        "siiRL": siirl_advantages(batch) | siirl_losses(batch),
    }
    result: dict[str, np.ndarray] = {}
    for system, functions in systems.items():
        for name, function in functions.items():
            try:
                value, gradient = function()
            except Exception as error:  # what they raise is a result
                result[f"{system}|{name}|error"] = np.array(f"{type(error).__name__}: {error}"[:200])
                continue
            result[f"{system}|{name}|value"] = value.numpy()
            if gradient is not None:
                result[f"{system}|{name}|gradient"] = gradient.numpy()
    return result


if __name__ == "__main__":
    for path in Path(sys.argv[1]).glob("batch-*.npz"):
        np.savez(path.with_name(path.name.replace("batch", "results")), **results(Padded(str(path))))
