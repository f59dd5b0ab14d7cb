"""What an optimizer does with gradients: the part of it that is not sharding, schedule, clip or offload.

A rule is built for a bucket of parameters by the function that its declaration names (`catalogue/optimizers.py`), and
sees this rank's parts of them. Ranks split matrices in any direction, so its steps are element-wise: what becomes of a
weight follows from its own gradient and states.

    def lion(states: KeptStates, settings: TrainSettings) -> UpdateRule:
        return ByRows(states, settings, lion_step)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_worker.engines.fsdp.optimizer.states import KeptState
from rljob_worker.engines.fsdp.settings import TrainSettings
from rljob_worker.users_code.function import load_function

CHUNK_ELEMENTS = 1 << 24
"""Numbers that are stepped at once where states are rounded: a step has some ten temporary copies of them."""

KeptStates = Mapping[torch.nn.Parameter, Mapping[str, KeptState]]
"""States of a bucket's parameters by their names in the declaration; all 0 before the first step."""


class UpdateRule(Protocol):
    """Steps parameters from their gradients with the states that it was built for."""

    def step(self, learning_rate: float, num_steps: int) -> None:
        """num_steps: how many there were with this one. A parameter without a gradient stays as it is."""
        ...


RuleBuilder = Callable[[KeptStates, TrainSettings], UpdateRule]


def rule_of(states: KeptStates, settings: TrainSettings) -> UpdateRule:
    """The rule of the job's optimizer. Raises InvalidJob where its function cannot be imported."""
    rule = OPTIMIZERS[settings.optimizer].rule
    build: RuleBuilder = load_function(f"training.optimizer.name {settings.optimizer}", rule)
    return build(states, settings)


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What a step depends on besides weights, gradients and states."""

    learning_rate: float
    num_steps: int
    """Steps up to this one."""
    weight_decay: float
    betas: tuple[float, float]


Step = Callable[[torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor], StepSettings], None]
"""weights, gradient, states by name, settings. Weights and states, each in memory of its own and in the dtype of
weights, are changed in place."""


class ByRows:
    """Computes in the dtype of weights what is kept in fewer bytes, some rows of a parameter at a time."""

    def __init__(self, states: KeptStates, settings: TrainSettings, step: Step) -> None:
        self._states, self._settings, self._step = states, settings, step

    def step(self, learning_rate: float, num_steps: int) -> None:
        now = StepSettings(learning_rate, num_steps, self._settings.weight_decay, self._settings.betas)
        with torch.no_grad():
            for local, states in self._states.items():
                if local.grad is not None:
                    self._step_by_rows(local, local.grad, states, now)

    def _step_by_rows(
        self, local: torch.Tensor, gradient: torch.Tensor, states: Mapping[str, KeptState], now: StepSettings
    ) -> None:
        for rows in _chunks(local.shape):
            numbers = {name: state.read(rows, local.dtype) for name, state in states.items()}
            self._step(local[rows], gradient[rows], numbers, now)
            for name, state in states.items():
                state.write(rows, numbers[name])


def _chunks(shape: torch.Size) -> Iterator[slice]:
    rows = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    return (slice(start, start + rows) for start in range(0, shape[0], rows))
