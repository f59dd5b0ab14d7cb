"""Rows that decode, and those that have ended and still lie among them."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.transformers import rows as rows_module
from rljob_worker.engines.rollout.transformers.request import DecodingRequest
from rljob_worker.engines.rollout.transformers.rows import DecodingRows, way_of
from rljob_worker.engines.rollout.vocabulary import Vocabulary

SAMPLING = Sampling(seed=7)
VOCABULARY = 8


def after_one_draw(*limits: int) -> DecodingRows:
    """Row i, of limits[i] tokens, has one."""
    rows = DecodingRows(end_token_ids=())
    rows.append([DecodingRequest(row, 0, np.array([3]), limit, SAMPLING) for row, limit in enumerate(limits)])
    rows.draw(0, torch.zeros(len(limits), VOCABULARY), version=1)
    return rows


def test_rows_that_have_not_ended_are_found_by_their_ids() -> None:
    rows = after_one_draw(1, 9, 1, 9)
    assert rows.finished.tolist() == [True, False, True, False] and rows.num_finished == 2
    assert rows.having({0, 1, 3, 7}) == [1, 3] and rows.running == [1, 3]
    assert [rows.ending(row) for row in (0, 2)] == [Ending.LENGTH, Ending.LENGTH]


def test_rows_that_are_left_out_are_no_longer_counted_as_ended() -> None:
    rows = after_one_draw(1, 9, 1, 9)
    rows.keep(np.array([3, 2]))
    assert (len(rows), rows.num_finished, rows.finished.tolist()) == (2, 1, [False, True])
    rows.keep(np.array([0]))
    assert (len(rows), rows.num_finished) == (1, 0)


def test_samplings_go_with_their_last_row_and_the_others_stay_with_theirs() -> None:
    """Tokens 2 and 5 are by far the most likely; the text that ends a row is token 5."""
    stops = StopStrings(("f",), Vocabulary(tuple(b"abcdefgh"[at : at + 1] for at in range(VOCABULARY)), {}))
    texts, greedy = Sampling(seed=1, stop=("f",)), Sampling(temperature=0)
    rows, logits = DecodingRows(end_token_ids=()), torch.zeros(1, VOCABULARY)
    rows.append([DecodingRequest(0, 0, np.array([3]), 9, texts, stops=stops)])
    rows.append([DecodingRequest(1, 0, np.array([3]), 9, greedy), DecodingRequest(2, 0, np.array([3]), 9, SAMPLING)])
    held = weakref.ref(stops)
    del stops
    rows.keep(np.array([2, 1]))
    assert held() is None
    logits[0, 2] = logits[0, 5] = 50.0
    logits[0, 2] += 1e-3
    tokens, over = rows.draw(0, logits.expand(2, -1), version=1)
    assert tokens.tolist()[1] == 2 and over == []
    assert rows.running == [2, 1]


def test_what_a_sampling_says_is_worked_out_once_for_all_rows_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = list[Sampling]()

    def counted(sampling: Sampling) -> Sampling:
        worked_out.append(sampling)
        return way_of(sampling)

    monkeypatch.setattr(rows_module, "way_of", counted)
    rows, greedy, logits = DecodingRows(end_token_ids=()), Sampling(temperature=0), torch.zeros(64, VOCABULARY)
    requests = [DecodingRequest(row, 0, np.array([3]), 9, SAMPLING if row % 2 else greedy) for row in range(64)]
    rows.append(requests)
    assert worked_out == [greedy, SAMPLING]
    logits[:, 2] = 1.0
    tokens, _ = rows.draw(0, logits, version=1)
    assert set(tokens[::2].tolist()) == {2} and len(set(tokens[1::2].tolist())) > 2


def test_a_row_is_the_request_that_came_with_the_tokens_it_has_by_now() -> None:
    rows, logits = DecodingRows(end_token_ids=()), torch.zeros(2, VOCABULARY)
    requests = [DecodingRequest(row, 0, np.array([3]), 9, SAMPLING) for row in range(2)]
    rows.append(requests)
    drawn = list[int]()
    for length in (1, 2):
        drawn.append(int(rows.draw(0, logits, version=1)[0][1]))
        assert rows.request(1) is requests[1] and requests[1].drawn.tokens.tolist() == drawn
        assert (requests[1].remaining, requests[1].num_tokens) == (9 - length, 1 + length)


def test_routes_stay_with_their_rows_beside_rows_that_have_ended() -> None:
    """Routes of 3 layers with 2 experts each, different in every step and row."""
    first, second = np.arange(48, dtype=np.int16).reshape(2, 4, 3, 2)
    rows = DecodingRows((), np.empty((0, 3, 2), np.int16))
    rows.append([DecodingRequest(row, 0, np.array([3]), limit, SAMPLING) for row, limit in enumerate((1, 9, 1, 9))])
    rows.draw(0, torch.zeros(4, VOCABULARY), version=1, routes=first)
    rows.draw(0, torch.zeros(4, VOCABULARY), version=1, routes=second)
    recorded = [[first[0]], [first[1], second[1]], [first[2]], [first[3], second[3]]]
    for row, expected in enumerate(recorded):
        np.testing.assert_array_equal(rows.request(row).drawn.routes, expected)
