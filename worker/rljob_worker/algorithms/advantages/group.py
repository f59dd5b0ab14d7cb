"""Group-relative advantages, as of GRPO: the responses to one prompt compared with each other.

In all of them a group of one has nothing to compare with, and a group of equal rewards no difference: their rows
get exactly 0. They stay in the denominators of the loss. Groups are found by id, in any order and of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..segments import segment_count, segment_max, segment_mean, segment_sum
from .samples import ADVANTAGES, Advantages, Reduce, Samples, no_reduce

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec

MAX_FILTER_WEIGHT = 3.0
"""Bound on what CPGD's `ClipFilter` multiplies by, as in the paper."""


@dataclass(frozen=True)
class _Groups:
    """Rewards, and what a row needs to know of its group; all float64."""

    rewards: Tensor  # [rows]
    group: Tensor  # int64 [rows]: index of the row's group
    size: Tensor  # int64 [groups]
    spread: Tensor  # [groups]: largest minus smallest reward

    @staticmethod
    def of(rewards: Tensor, group_ids: Tensor) -> _Groups:
        groups, group = torch.unique(group_ids, return_inverse=True)
        wide, num_groups = rewards.double(), len(groups)
        spread = segment_max(wide, group, num_groups) + segment_max(-wide, group, num_groups)
        return _Groups(wide, group, segment_count(group, num_groups), spread)

    @property
    def centred(self) -> Tensor:
        """r_i - mean_g, [rows]."""
        return self.rewards - segment_mean(self.rewards, self.group, len(self.size))[self.group]

    @property
    def std(self) -> Tensor:
        """With Bessel's correction, [groups]; 0 for a group of one."""
        squares = segment_sum(self.centred.square(), self.group, len(self.size))
        return (squares / (self.size - 1).clamp(min=1)).sqrt()

    def where_varied(self, advantages: Tensor, like: Tensor) -> Tensor:
        """Exactly 0 in groups of equal rewards, which may miss their own mean by a rounding error."""
        return torch.where(self.spread[self.group] > 0.0, advantages, 0.0).to(like.dtype)


def group_spread(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Largest minus smallest reward of each group; 0 gives GRPO no signal.

    max_g r - min_g r

    DAPO section 3.2, https://arxiv.org/abs/2503.14476 (such groups are resampled there)
    rewards: [rows]. group_ids: int64 [rows]. Returns float64 [groups], by ascending group id.
    """
    return _Groups.of(rewards, group_ids).spread


def grpo_advantages(rewards: Tensor, group_ids: Tensor, *, normalize_std: bool = True, epsilon: float = 1e-6) -> Tensor:
    """How much better a row is than the other rows of its prompt.

    A_i = (r_i - mean_g) / (std_g + epsilon), std with Bessel's correction
    A_i = r_i - mean_g without normalize_std

    GRPO https://arxiv.org/abs/2402.03300, Dr. GRPO https://arxiv.org/abs/2503.20783
    rewards: [rows]. group_ids: int64 [rows]. Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    groups = _Groups.of(rewards, group_ids)
    advantages = groups.centred
    if normalize_std:
        advantages = advantages / (groups.std + epsilon)[groups.group]
    return groups.where_varied(advantages, rewards)


def rloo_advantages(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """How much better a row is than the mean of the others of its prompt.

    A_i = r_i - 1/(k-1) · Σ_{j≠i} r_j = k/(k-1) · (r_i - mean_g)

    RLOO https://arxiv.org/abs/2402.14740
    rewards: [rows]. group_ids: int64 [rows]. Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    groups = _Groups.of(rewards, group_ids)
    size = groups.size.double()  # a quotient of integers would be a float32
    scale = size / (size - 1.0).clamp(min=1.0)
    return groups.where_varied(groups.centred * scale[groups.group], rewards)


def opo_advantages(rewards: Tensor, lengths: Tensor, group_ids: Tensor) -> Tensor:
    """How much better a row is than the mean of its prompt in which long rows weigh more.

    A_i = r_i - Σ_j |y_j| · r_j / Σ_j |y_j|

    OPO https://arxiv.org/abs/2505.23585 (the baseline of least variance, if gradients grow with length)
    rewards: [rows]. lengths: int64 [rows], actions of each row. group_ids: int64 [rows].
    Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    groups = _Groups.of(rewards, group_ids)
    num_groups = len(groups.size)
    weighted = segment_sum(groups.rewards * lengths, groups.group, num_groups)
    baseline = weighted / segment_sum(lengths.double(), groups.group, num_groups).clamp(min=1.0)
    return groups.where_varied(groups.rewards - baseline[groups.group], rewards)


def pass_at_k_advantages(
    rewards: Tensor, group_ids: Tensor, *, normalize_std: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """What the best row of a prompt adds to the second best; 0 for all other rows.

    A_i = (r_i - max_{j≠i} r_j) / (std_g + epsilon) for the only best row; undivided without normalize_std

    https://arxiv.org/abs/2503.19595
    rewards: [rows]. group_ids: int64 [rows]. Two best rows add nothing to each other and get 0.
    Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    groups = _Groups.of(rewards, group_ids)
    num_groups = len(groups.size)
    is_best = groups.rewards == segment_max(groups.rewards, groups.group, num_groups)[groups.group]
    num_best = segment_sum(is_best.long(), groups.group, num_groups)
    second = segment_max(groups.rewards.masked_fill(is_best, -torch.inf), groups.group, num_groups)
    gain = groups.rewards - second[groups.group]
    if normalize_std:
        gain = gain / (groups.std + epsilon)[groups.group]
    return groups.where_varied(torch.where(is_best & (num_best == 1)[groups.group], gain, 0.0), rewards)


def cpgd_advantages(
    rewards: Tensor, group_ids: Tensor, *, weighting: str, epsilon: float = 1e-6, reduce: Reduce = no_reduce
) -> Tensor:
    """Rewards centred within their prompt, with a weight of the prompt.

    A_i = ω_g · (r_i - mean_g)
    StandardDeviation  ω = 1 / (std_g + epsilon)
    ClipFilter         ω = min(prompts / prompts whose rewards vary, 3), as if the others had been filtered out
    Uniform            ω = 1

    CPGD https://arxiv.org/abs/2505.12504
    rewards: [rows]. group_ids: int64 [rows]. reduce: sums over ranks, called once with ClipFilter.
    Returns [rows] in the dtype of `rewards`; computed in float64.
    """
    groups = _Groups.of(rewards, group_ids)
    return groups.where_varied(groups.centred * _CPGD_WEIGHTS[weighting](groups, epsilon, reduce), rewards)


def _inverse_std(groups: _Groups, epsilon: float, reduce: Reduce) -> Tensor:
    return (1.0 / (groups.std + epsilon))[groups.group]


def _clip_filter(groups: _Groups, epsilon: float, reduce: Reduce) -> Tensor:
    num_groups = groups.rewards.new_tensor(len(groups.size))
    num_prompts, num_varied = reduce(torch.stack([num_groups, (groups.spread > 0.0).sum().double()])).unbind()
    return (num_prompts / num_varied.clamp(min=1.0)).clamp(max=MAX_FILTER_WEIGHT)


def _uniform(groups: _Groups, epsilon: float, reduce: Reduce) -> Tensor:
    return groups.rewards.new_ones(())


_CPGD_WEIGHTS = {"StandardDeviation": _inverse_std, "ClipFilter": _clip_filter, "Uniform": _uniform}


@ADVANTAGES.register("GRPO")
def grpo(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`grpo_advantages` of each row on all its actions."""
    by_row = grpo_advantages(samples.rewards, samples.group_ids, normalize_std=options.normalize_std)
    return Advantages(samples.on_actions(by_row))


@ADVANTAGES.register("RLOO")
def rloo(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`rloo_advantages` of each row on all its actions."""
    return Advantages(samples.on_actions(rloo_advantages(samples.rewards, samples.group_ids)))


@ADVANTAGES.register("OPO")
def opo(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`opo_advantages` of each row on all its actions."""
    lengths = segment_count(samples.row[samples.mask], samples.num_rows)
    return Advantages(samples.on_actions(opo_advantages(samples.rewards, lengths, samples.group_ids)))


@ADVANTAGES.register("GRPOPassK")
def grpo_pass_at_k(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`pass_at_k_advantages` of each row on all its actions."""
    by_row = pass_at_k_advantages(samples.rewards, samples.group_ids, normalize_std=options.normalize_std)
    return Advantages(samples.on_actions(by_row))


@ADVANTAGES.register("CPGD")
def cpgd(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """`cpgd_advantages` of each row on all its actions."""
    by_row = cpgd_advantages(samples.rewards, samples.group_ids, weighting=options.weighting, reduce=reduce)
    return Advantages(samples.on_actions(by_row))


@ADVANTAGES.register("ReinforcePlusPlusBaseline")
def reinforce_plus_plus_baseline(samples: Samples, options: AdvantageSpec, reduce: Reduce) -> Advantages:
    """Rewards minus the mean of their prompt; the batch's whitening, not the group's std, gives the scale.

    A_i = r_i - mean_g

    REINFORCE++ https://arxiv.org/abs/2501.03262
    """
    by_row = grpo_advantages(samples.rewards, samples.group_ids, normalize_std=False)
    return Advantages(samples.on_actions(by_row))
