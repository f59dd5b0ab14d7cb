"""What is shown of single tokens."""

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.report import joined_samples
from rljob_worker.stages.draws.places import renumbered
from rljob_worker.stages.token_samples import MAX_TOKENS, token_samples


def batch(first_row, lengths):
    rows = np.arange(first_row, first_row + len(lengths))
    ids = [np.arange(length) for length in lengths]
    columns = {
        "prompt_ids": Column.ragged([[7, 7]] * len(lengths)),
        "response_ids": Column.ragged(ids),
        "rollout_log_probs": Column.ragged([-item / 3 for item in ids], "float32"),
        "loss_mask": Column.ragged([item > 0 for item in ids], "bool"),
        "answer": Column.strings(["4"] * len(lengths)),
        "truncated": Column.fixed([False] * len(lengths)),
    }
    return Batch(rows, rows // 2, np.array(lengths), columns)


def decode(ids):
    assert len(ids) == 1
    return f"<{ids[0]}>"


def test_columns_of_response_tokens_of_the_steps_first_rows():
    result = token_samples(batch(16, [2, 1, 3]), decode, first_row=16)
    assert result == [
        {"row_id": 16, "tokens": {"text": ["<0>", "<1>"], "rollout_log_probs": [0.0, -0.3333], "loss_mask": [0, 1]}},
        {"row_id": 17, "tokens": {"text": ["<0>"], "rollout_log_probs": [0.0], "loss_mask": [0]}},
    ]


def test_of_a_trajectory_with_several_rows_the_last_is_shown():
    # rows 12 and 13 are the first trajectory of a step that begins with row 12, 15 the second, 18 the third
    rows = Batch.build([12, 13, 15, 18], [2, 2, 2, 3], batch(0, [2, 1, 3, 1]).columns)
    result = token_samples(rows, decode, first_row=12, rows_per_trajectory=3)
    assert [item["row_id"] for item in result] == [13, 15]


def test_a_rank_without_those_rows_shows_none():
    assert token_samples(batch(18, [2, 1]), decode, first_row=16) == []


def test_long_responses_are_cut():
    (result,) = token_samples(batch(0, [MAX_TOKENS + 5]), decode, first_row=0)
    assert {len(values) for values in result["tokens"].values()} == {MAX_TOKENS}


def test_versions_of_tokens_are_shown_of_rows_that_have_several():
    """Row 1 goes on with the weights of step 4 behind the tokens that are shown."""
    long = MAX_TOKENS + 2
    versions = Column.ragged([[3] * 2, [3] * (long - 1) + [4], [3] * 3])
    rows = batch(0, [2, long, 3]).with_columns({"token_versions": versions})
    of_one, of_two = (item["tokens"] for item in token_samples(rows, decode, first_row=0))
    assert "token_versions" not in of_one
    assert of_two["token_versions"] == [3] * MAX_TOKENS


def test_what_several_stages_tell_of_a_row_is_one_record():
    reported = [
        {"row_id": 1, "response": "4"},
        {"row_id": 1, "tokens": {"text": ["4"]}},
        {"row_id": 1, "validation": True, "response": "5"},
        {"row_id": 1, "dropped": True, "response": "6"},
        {"row_id": 1, "tokens": {"advantages": [0.5]}},
        {"note": "of no row"},
        {"note": "of no row"},
    ]
    assert joined_samples(reported) == [
        {"row": 2, "response": "4", "tokens": {"text": ["4"], "advantages": [0.5]}},
        {"row": 2, "validation": True, "response": "5"},
        {"row": 2, "dropped": True, "response": "6"},
        *reported[5:],
    ]


def test_a_drawn_row_is_shown_under_the_number_that_it_got():
    """Groups 7, 9 and 10 of those drawn become 20 to 22; with 4 rows each, row 1 of group 9 is row 21·4 + 1."""

    def shown(row_id):
        sample, numbers, surplus = {"row_id": row_id}, np.array([7, 9, 10]), np.array([12])
        return renumbered(sample, numbers, surplus, first_group=20, rows_per_group=4)

    assert shown(9 * 4 + 1) == {"row_id": 85}
    assert shown(8 * 4) == {"row_id": 32, "dropped": True}
    assert shown(11 * 4) == {"row_id": 44, "dropped": True}
    assert shown(12 * 4) == {"row_id": 48, "waiting": True}
