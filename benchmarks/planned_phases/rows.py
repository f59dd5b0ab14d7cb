"""Rows of full length, four of each prompt."""

from __future__ import annotations

import numpy as np
from picture_steps.pictures import noise
from sized_models import PICTURE, VISION_END, VISION_START

from planned_phases.cases import CELL, GROUP_SIZE, ROWS
from rljob_api.catalogue.columns import IMAGES
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.vision.pictures import PictureList


def rows(made: Plan, count: int) -> Batch:
    """All of the full length."""
    spec, rng = made.spec, np.random.default_rng(0)
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens
    groups = np.arange(count) // GROUP_SIZE
    num_groups = count // GROUP_SIZE
    prompts = rng.integers(6, 1000, (num_groups, prompt))
    pictures = {}
    if spec.sees:
        prompts[:] = [VISION_START, *[PICTURE] * (prompt - 2), VISION_END]
        pictures = {IMAGES: _pictures(num_groups, prompt - 2)}
    responses = Column.ragged(list(rng.integers(6, 1000, (count, response))))
    columns = {
        "prompt_ids": Column.ragged([prompts[group] for group in groups]),
        "response_ids": responses,
        "advantages": Column.from_lengths(np.ones(count * response), responses.lengths),
        "weight": Column.fixed(np.ones(count)),
        **pictures,
    }
    return Batch.build(np.arange(count), groups, columns, np.full(count, prompt + response))


def _pictures(num_groups: int, tokens: int) -> Column:
    """One picture of so many tokens for each group."""
    width = tokens // ROWS * CELL
    blobs = [PictureList.pack([noise(ROWS * CELL, width, seed)]) for seed in range(num_groups)]
    return Column.binary(blobs).per_group_at(np.arange(num_groups) * GROUP_SIZE, num_groups * GROUP_SIZE)
