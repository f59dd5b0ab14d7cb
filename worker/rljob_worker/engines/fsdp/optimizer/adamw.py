"""Steps of AdamW (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101) over local tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from rljob_worker.engines.fsdp.optimizer.rule import ByRows, KeptStates, StepSettings, UpdateRule
from rljob_worker.engines.fsdp.settings import TrainSettings

_EPSILON = 1e-8


def adamw(states: KeptStates, settings: TrainSettings) -> UpdateRule:
    return FusedAdamW(states, settings) if settings.states == "Float32" else ByRows(states, settings, adamw_step)


class FusedAdamW:
    """torch's fused kernel, which devices and CPUs have."""

    def __init__(self, states: KeptStates, settings: TrainSettings) -> None:
        self._adamw = torch.optim.AdamW(
            states, betas=settings.betas, eps=_EPSILON, weight_decay=settings.weight_decay, fused=True
        )
        for local, result in states.items():
            steps = torch.zeros((), dtype=torch.float32, device=local.device)
            self._adamw.state[local] = {"step": steps, **{name: state.kept[""] for name, state in result.items()}}

    def step(self, learning_rate: float, num_steps: int) -> None:
        self._adamw.param_groups[0]["lr"] = learning_rate
        for state in self._adamw.state.values():
            state["step"].fill_(num_steps - 1)  # the kernel counts this one
        self._adamw.step()


def adamw_step(
    weights: torch.Tensor, gradient: torch.Tensor, states: Mapping[str, torch.Tensor], now: StepSettings
) -> None:
    """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = (1 - rate decay) w - rate m' / (sqrt(v') + eps), with
    m' = m / (1 - b1^t) and v' = v / (1 - b2^t)."""
    first, second = states["exp_avg"], states["exp_avg_sq"]
    beta1, beta2 = now.betas
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = second.sqrt().div_(math.sqrt(1 - beta2**now.num_steps)).add_(_EPSILON)
    weights.mul_(1 - now.learning_rate * now.weight_decay)
    weights.addcdiv_(first, spread, value=-now.learning_rate / (1 - beta1**now.num_steps))
