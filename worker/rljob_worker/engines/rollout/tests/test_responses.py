"""Responses while they grow."""

import numpy as np
import pytest

from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.responses import Response, ended_table
from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.top_log_probs import GrowingTop
from rljob_worker.engines.rollout.vocabulary import Vocabulary

FREE = Sampling()


def response(row_id: int = 0, turn: int = 0, sampling: Sampling = FREE, stops: StopStrings | None = None) -> Response:
    return Response(row_id, turn, np.array([3]), 9, sampling, stream=0, first_draw=0, stops=stops)


def test_every_token_has_its_log_prob_and_the_version_that_made_it() -> None:
    first, second = response(7, 1), response(8)
    first.add([5, 6], [-0.5, -1.0], 3)
    first.add([9], [-2.0], 4)
    table = ended_table([(first, Ending.LENGTH), (second, Ending.ABORTED)])
    assert table.row_ids.tolist() == [7, 8] and table.turns.tolist() == [1, 0]
    assert [row.tolist() for row in table.response_ids.to_list()] == [[5, 6, 9], []]
    assert [row.tolist() for row in table.log_probs.to_list()] == [[-0.5, -1.0, -2.0], []]
    assert [row.tolist() for row in table.token_versions.to_list()] == [[3, 3, 4], []]
    assert table.endings.tolist() == [Ending.LENGTH, Ending.ABORTED]


def test_likely_tokens_stay_beside_the_tokens_that_a_response_keeps() -> None:
    stops = StopStrings(("ab",), Vocabulary((b"a", b"b", b"c", b"x"), {}))
    result = response(7, stops=stops)
    result.top = GrowingTop(2)
    result.add([3, 0], [-1.0, -2.0], 1, [([3, 2, 1], [-1.0, -3.0, -4.0]), ([2, 0], [-0.5, -2.0])])
    result.add([1, 2], [-3.0, -4.0], 1, [([1, 0], [-3.0, -3.5]), ([9, 9], [0.0, 0.0])])
    top = ended_table([(result, Ending.STOP), (response(8), Ending.LENGTH)]).top_log_probs
    assert list(top) == [7] and top[7].tokens.tolist() == [[3, 2], [2, 0], [1, 0]]
    assert top[7].log_probs.tolist() == [[-1.0, -3.0], [-0.5, -2.0], [-3.0, -3.5]]
    assert GrowingTop(3).whole().tokens.shape == (0, 3)


def test_nothing_that_ended_is_a_table_without_entries() -> None:
    table = ended_table([])
    assert len(table) == 0
    types = [str(values.dtype) for values in (table.row_ids, table.turns, table.endings)]
    assert types == ["int64", "int64", "int8"]
    assert table.log_probs.values.dtype == np.float32 and table.response_ids.num_rows == 0


@pytest.mark.parametrize(
    ("tokens", "ending"),
    [
        ([5, 2], Ending.END_TOKEN),
        ([2, 5], Ending.LENGTH),
        ([5, 9], Ending.STOP),
        ([9, 2], Ending.END_TOKEN),
        ([5, 6], Ending.LENGTH),
    ],
)
def test_the_last_token_says_why_it_ended(tokens: list[int], ending: Ending) -> None:
    result = response(sampling=Sampling(stop_token_ids=(9, 2)))
    result.add(tokens, [-1.0] * len(tokens), 0)
    assert result.ending({2}, is_finished=True) is ending
    assert result.ending({2}, is_finished=False) is None


@pytest.mark.parametrize("spoilt", [float("nan"), float("-inf")])
def test_a_log_prob_that_is_not_finite_ends_what_is_known_of_a_response(spoilt: float) -> None:
    """Not even an end token behind it ends the found."""
    result = response()
    result.add([5], [-1.0], 3)
    result.add([6, 7, 2], [-2.0, spoilt, -0.5], 4)
    result.add([2], [-0.5], 5)
    assert (result.tokens, result.log_probs, result.versions) == ([5, 6], [-1.0, -2.0], [3, 4])
    assert result.spoilt_by == 4
    assert result.ending({2, 6}, is_finished=True) is None


def test_a_stop_text_ends_a_response_at_the_token_that_completes_it() -> None:
    """Guessed tokens behind it are dropped."""
    stops = StopStrings(("abc",), Vocabulary((b"a", b"b", b"c", b"x"), {}))
    result = response(stops=stops)
    result.add([3, 0], [-1.0, -2.0], 1)
    assert result.ending((), is_finished=False) is None
    result.add([1, 2, 3], [-3.0, -4.0, -5.0], 1)
    assert result.tokens == [3, 0, 1, 2] and result.log_probs == [-1.0, -2.0, -3.0, -4.0]
    assert result.ending((), is_finished=False) is Ending.STOP
    assert result.ending((3,), is_finished=True) is Ending.STOP  # 3 was behind the text
