"""Optimizers, by the name that a job writes in `training.optimizer.name`."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.catalogue.declarations import Declarations


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """A number that is kept of every weight between optimizer steps, in the format of `training.optimizer.states`."""

    name: str
    """In checkpoints."""
    signed: bool = True
    """Whether it may be below 0. In Int8 one that may not is kept finer, and never becomes 0."""


@dataclass(frozen=True, slots=True)
class DeclaredOptimizer:
    """What it keeps of every weight, which is what a plan counts, and the rule of its steps."""

    name: str
    states: tuple[OptimizerState, ...]
    rule: str
    """`module:function` of the worker, a `RuleBuilder`: see rljob_worker.engines.fsdp.optimizer.rule."""


OPTIMIZERS = Declarations(
    "optimizer",
    "rljob.optimizers",
    DeclaredOptimizer,
    DeclaredOptimizer(
        "AdamW",
        (OptimizerState("exp_avg"), OptimizerState("exp_avg_sq", signed=False)),
        "rljob_worker.engines.fsdp.optimizer.adamw:adamw",
    ),
)
