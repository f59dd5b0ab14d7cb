"""Rows that decode, and those that have ended and still lie among them."""

from __future__ import annotations

import numpy as np
import torch

from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.transformers.request import Request
from rljob_worker.engines.rollout.transformers.rows import DecodingRows

SAMPLING = Sampling(seed=7)
VOCABULARY = 8


def after_one_draw(*limits: int) -> DecodingRows:
    """Row i, of limits[i] tokens, has one."""
    rows = DecodingRows(end_token_ids=(), vocabulary=None)
    rows.prepare(SAMPLING)
    rows.append([Request(row, 0, np.array([3]), limit, SAMPLING) for row, limit in enumerate(limits)])
    rows.draw(0, torch.zeros(len(limits), VOCABULARY), version=1)
    return rows


def test_a_row_that_has_ended_keeps_its_ending_when_it_is_aborted() -> None:
    rows = after_one_draw(1, 9, 1)
    assert rows.finished.tolist() == [True, False, True]
    assert rows.abort(np.array([0, 1])) == [1]
    assert [rows.ending(row) for row in range(3)] == [Ending.LENGTH, Ending.ABORTED, Ending.LENGTH]
    assert rows.num_finished == 3
    assert rows.abort(np.array([0, 1, 2])) == [] and rows.num_finished == 3


def test_rows_that_are_left_out_are_no_longer_counted_as_ended() -> None:
    rows = after_one_draw(1, 9, 1, 9)
    rows.keep(np.array([3, 2]))
    assert (len(rows), rows.num_finished, rows.finished.tolist()) == (2, 1, [False, True])
    rows.keep(np.array([0]))
    assert (len(rows), rows.num_finished) == (1, 0)
