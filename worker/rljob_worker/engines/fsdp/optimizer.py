"""AdamW over this rank's shards, with the learning-rate schedule and the clip by the global norm.

The optimizer sees the local tensors under FSDP's distributed ones: an update is element-wise, and plain tensors are
stepped without a dispatch per parameter.
"""

from __future__ import annotations

import math

import torch

from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.fsdp.parts import Parts
from rljob_worker.engines.fsdp.settings import TrainSettings, learning_rate_factor
from rljob_worker.engines.shards import laid_out_like, local_part
from rljob_worker.engines.tensor_parallel import add_up

_EPSILON = 1e-8


class ShardedAdamW:
    """Optimizer, schedule and clipping of one model's parameters."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: TrainSettings, parts: Parts) -> None:
        self.settings = settings
        self._parts = parts
        self.parameters = parameters
        self.num_steps = 0
        self._locals = {name: torch.nn.Parameter(local_part(p.detach())) for name, p in parameters.items()}
        self._adamw = torch.optim.AdamW(
            self._locals.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=_EPSILON,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        for local in self._locals.values():  # from the start, so that a checkpoint has the same tensors before any step
            self._adamw.state[local] = {
                "step": torch.zeros((), dtype=torch.float32, device=local.device),
                "exp_avg": torch.zeros_like(local),
                "exp_avg_sq": torch.zeros_like(local),
            }

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self.settings.learning_rate * learning_rate_factor(self.settings, self.num_steps)

    def step(self, agreement: Agreement) -> tuple[float, bool]:
        """Clip and step from the gradients that FSDP left. Returns the norm before clipping and whether the step was
        taken; it is not when the norm is not finite, on every rank alike, since the norm is global."""
        for name, local in self._locals.items():
            gradient = self.parameters[name].grad
            local.grad = None if gradient is None else local_part(gradient)
        split, whole = self._gradients(is_split=True), self._gradients(is_split=False)
        if self._parts.matrices is not None:
            add_up(whole, self._parts.matrices)
        norm = agreement.gradient_norm(whole, split)
        if math.isfinite(norm):
            if norm > self.settings.max_grad_norm:
                torch._foreach_mul_(whole + split, self.settings.max_grad_norm / norm)
            self._adamw.param_groups[0]["lr"] = self.learning_rate
            self._adamw.step()
            self.num_steps += 1
        self.clear()
        return norm, math.isfinite(norm)

    def _gradients(self, *, is_split: bool) -> list[torch.Tensor]:
        """Of this rank's part of the parameters that ranks split, or of those that each of them has whole."""
        split = self._parts.split
        return [
            local.grad
            for name, local in self._locals.items()
            if local.grad is not None and is_split == (split.share(name) is not None)
        ]

    def clear(self) -> None:
        """Drop all gradients."""
        for name, local in self._locals.items():
            local.grad = self.parameters[name].grad = None

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the optimizer by `parameter.name`, distributed as the parameters are, and the number of steps
        taken."""
        tensors: dict[str, torch.Tensor] = {"num_steps": torch.tensor(self.num_steps)}
        for name, local in self._locals.items():
            for key in ("exp_avg", "exp_avg_sq"):
                mean = laid_out_like(self.parameters[name], self._adamw.state[local][key])
                tensors[f"{name}.{key}"] = self._parts.placed(name, mean)
        return tensors

    def set_num_steps(self, num_steps: int) -> None:
        """After the tensors of `state` were filled in place: go on from that step."""
        self.num_steps = num_steps
        for local in self._locals.values():
            self._adamw.state[local]["step"].fill_(num_steps)
