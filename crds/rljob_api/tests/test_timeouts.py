"""The factor that scales every timeout of the tests."""

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS, TIMEOUT_FACTOR, factor_of


@pytest.mark.parametrize("text, factor", [("1", 1.0), ("0.5", 0.5), ("20", 20.0)])
def test_the_factor_is_read(text: str, factor: float) -> None:
    assert factor_of(text) == factor


@pytest.mark.parametrize("text", ["", "four", "0", "-1", "nan", "inf"])
def test_a_factor_that_is_no_positive_number_is_refused_by_the_name_of_its_variable(text: str) -> None:
    with pytest.raises(ValueError, match=f"^RLJOB_TEST_PATIENCE is '{text}': set a factor above 0"):
        factor_of(text)


def test_a_wait_is_a_minute_times_the_factor() -> None:
    assert TEST_TIMEOUT_SECONDS == 60 * TIMEOUT_FACTOR
