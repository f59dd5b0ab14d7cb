"""Which weights drew which tokens."""

import pytest

from rljob_worker.metrics.token_stretches import stretches_text


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ([[0, 3], [512, 4]], "weights of step 3, from token 513 on of step 4"),
        ([[0, 0], [8, 1], [9, 12]], "weights of the start, from token 9 on of step 1, from token 10 on of step 12"),
        ([[0, 7]], "weights of step 7"),
    ],
)
def test_stretches_in_words(versions, text):
    assert stretches_text(versions) == text
