"""Draws step by step, put together as responses."""

from __future__ import annotations

import numpy as np
import torch

from rljob_worker.engines.drawn_tokens import DrawnTokens


def test_rows_are_cut_after_their_first_end_or_at_the_limit() -> None:
    drawn = DrawnTokens(end_token_ids=(0, 9), max_tokens=3)
    steps = [([0, 1, 2], [5, 9, 6]), ([2, 0, 1], [7, 0, 8]), ([0, 2], [4, 7]), ([2], [7])]
    ended = [
        drawn.add(np.array(rows), torch.tensor(tokens), -torch.arange(float(len(rows)))).tolist()
        for rows, tokens in steps
    ]
    assert ended == [[False, True, False], [False, True, False], [False, False], [False]]
    responses = drawn.responses(3)
    # row 0: 5 0 and an end; row 1 ends at once; row 2 draws four, may keep three
    assert [row.tolist() for row in responses.response_ids.to_list()] == [[5, 0], [9], [6, 7, 7]]
    assert [row.tolist() for row in responses.log_probs.to_list()] == [[0, -1], [-1], [-2, 0, -1]]
    assert responses.truncated.tolist() == [False, False, True]


def test_no_rows_make_no_responses() -> None:
    responses = DrawnTokens((1,), 4).responses(0)
    assert responses.response_ids.num_rows == 0
    assert len(responses.truncated) == 0
