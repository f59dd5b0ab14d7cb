"""What an FSDP engine needs to know of a job, and the learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rljob_api.memory.sizes import HELD_BYTES, MIN_UNIT_BYTES

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16, "Float64": torch.float64}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One model's training; what a reference model leaves at its defaults is unused."""

    temperature: float = 1.0
    """Sampling temperature: logits are divided by it in every log-prob and entropy."""
    tokens_per_micro_batch: int = 16384
    precision: str = "Float32"
    """Number format of forward and backward: Float32, BFloat16 (weights and optimizer stay float32) or Float64."""
    trainable: bool = True
    seed: int = 0
    """Seed of the job: an adapter begins as a function of it."""
    learning_rate: float = 1e-6
    schedule: str = "Constant"
    warmup_steps: int = 0
    """Optimizer steps of the linear rise to the peak."""
    total_steps: int = 1
    """Optimizer steps after which a decaying schedule is at 0."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    activation_checkpointing: bool = False
    offload_optimizer: bool = False
    """Whether the optimizer's states wait in the memory of the host between optimizer steps."""
    offload_parameters: bool = False
    """Whether weights and gradients wait there, where optimizer steps are then made."""
    optimizer: str = "AdamW"
    """By the name of the catalogue."""
    states: str = "Float32"
    """Number format of the optimizer's states: Float32, which is Float64 where weights are, BFloat16 or Int8."""
    compile: bool = False
    """Whether layers are compiled: see `compiling`."""
    vision_learning_rate: float | None = None
    """Peak of a vision tower; None: it is frozen, and has neither gradients nor an optimizer."""
    patches_per_micro_batch: int | None = None
    """Most patches of pictures; None: as many as its tokens allow."""
    router_aux_loss_coefficient: float | None = None
    """Weight in the loss of what an uneven load of experts costs; None: as the model's config has it."""
    follows_routes: bool = False
    """Whether tokens go to the experts that the batch says, in log-probs and updates."""
    min_unit_bytes: int = MIN_UNIT_BYTES
    """Layers are gathered and reduced together up to this size, in bytes."""
    held_bytes: int = HELD_BYTES
    """Up to this size of a model its gradients, and on a CPU its weights, stay whole on every rank between the
    micro-batches of a step: one reduction for all of them. A larger model is reduced and sharded after each, so that a
    rank never has more of it whole than the layers at work; that costs a reduction of all gradients, and on a CPU the
    gathering of all weights, for every further micro-batch."""

    @property
    def dtype(self) -> torch.dtype:
        """In which layers compute, and in which what is not trained is kept."""
        return DTYPES[self.precision]

    @property
    def master_dtype(self) -> torch.dtype:
        """The precision of stored weights: what is trained is kept in at least float32."""
        return self.adapter_dtype if self.trainable else self.dtype

    @property
    def adapter_dtype(self) -> torch.dtype:
        """The precision of an adapter, trained or not: what is added to weights is not rounded before."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def is_mixed(self) -> bool:
        """Whether layers compute in another dtype than the weights are kept in."""
        return bool(self.master_dtype != self.dtype)


def scheduled_rate_factor(settings: TrainSettings, step: int) -> float:
    """Factor of the peak learning rate at the 0-based optimizer step: (step + 1) / warmup while warming up, then the
    schedule."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    span = max(1, settings.total_steps - settings.warmup_steps)
    return SCHEDULES[settings.schedule](min(1.0, (step - settings.warmup_steps) / span))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "Constant": lambda _: 1.0,
    "Linear": lambda progress: 1.0 - progress,
    "Cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""Factor of the peak by progress 0..1 after the warm-up."""
