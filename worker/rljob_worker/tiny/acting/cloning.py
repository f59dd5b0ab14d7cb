"""Behaviour cloning: a policy is taught the decisions of a script, by the engine that trains it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_worker.algorithms.objectives import PolicyObjective, policy_objective
from rljob_worker.batch import Batch, Column
from rljob_worker.embodied.action_policy import action_policy
from rljob_worker.embodied.observation import Actions, Observation
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.actions import acts_by_towers
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.vision.fused_processing import shared_fused_processor
from rljob_worker.vision.pictures import PictureList


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A decision of a script."""

    observation: Observation
    actions: Actions
    """[chunk, dimensions], in the units of the simulator."""


@dataclass(frozen=True, slots=True)
class Cloning:
    """How long, and how fast."""

    steps: int
    rows_per_step: int
    learning_rate: float
    seed: int = 0


def clone(
    folder: Path,
    shown: Iterator[Shown],
    settings: Cloning,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Teach the policy of a model directory, and write its weights there. shown: endless. report: gets each step's
    cross entropy, per action token."""
    model = load_policy(str(folder), torch.float32, torch.device("cpu"))
    engine, objective = _engine(model, str(folder), settings), _cross_entropy(settings.rows_per_step)
    policy = action_policy(str(folder), None, int(model.config.action_tokens["chunk"]))
    for step in range(settings.steps):
        rows = [next(shown) for _ in range(settings.rows_per_step)]
        prompts = [policy.prompt(row.observation) for row in rows]
        tokens = [policy.action_tokens.tokens(row.actions) for row in rows]
        report(step, engine.update(_batch(rows, prompts, tokens), objective)["loss/policy"].value)
    model.save_pretrained(folder)


def _engine(model: PreTrainedModel, path: str, settings: Cloning) -> FSDPEngine:
    reader = None
    if acts_by_towers(model.config):
        reader = PictureReader.of(model, shared_fused_processor(path, model.config.towers[0].patch))
    of_training = TrainSettings(
        learning_rate=settings.learning_rate,
        vision_learning_rate=None if reader is None else settings.learning_rate,
        schedule="Cosine",
        warmup_steps=max(1, settings.steps // 20),
        total_steps=max(2, settings.steps),
        seed=settings.seed,
    )
    return FSDPEngine(model, of_training, torch.device("cpu"), reader=reader)


def _cross_entropy(num_rows: int) -> PolicyObjective:
    """-log π of what was shown, on average over action tokens: REINFORCE with advantages of 1."""
    algorithm = AlgorithmSpec.model_validate({"name": "Reinforce", "kl": {"coefficient": 0}})
    return policy_objective(algorithm, max_response_tokens=num_rows, has_old_log_probs=False)


def _batch(rows: list[Shown], prompts: list[np.ndarray], tokens: list[np.ndarray]) -> Batch:
    ids, responses = np.arange(len(rows)), Column.ragged(tokens)
    columns = {
        "prompt_ids": Column.ragged(prompts),
        "response_ids": responses,
        "response_mask": Column.from_lengths(np.ones(len(responses.values), np.uint8), responses.lengths),
        "advantages": Column.from_lengths(np.ones(len(responses.values), np.float32), responses.lengths),
    }
    if rows[0].observation.pictures:
        columns["images"] = Column.binary([PictureList.pack(row.observation.pictures) for row in rows])
    states = [row.observation.state for row in rows if row.observation.state is not None]
    if states:
        columns["state"] = Column.ragged(states, "float32")
    return Batch.build(ids, ids, columns)
