import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.quantity import amount


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("3k", 3000), (4, 4)])
def test_quantities(text, value):
    assert float(amount(text)) == value


@given(st.integers(0, 10**6))
def test_thousandths_and_units_agree(number):
    assert amount(f"{number}m") * 1000 == amount(str(number))


@pytest.mark.parametrize("text", ["9223372036854775807", "-9223372036854775807", "1e18", "7E", "7Ei", "1e-999"])
def test_the_largest_numbers_are_quantities(text):
    assert abs(amount(text)) <= 2**63 - 1


@pytest.mark.parametrize("text", ["9223372036854775808", "1e19", "-1e19", "8Ei", "9999E", "1e999", "1e999999999"])
def test_what_is_beyond_is_no_quantity(text):
    """Made a whole number, the last would take all memory."""
    with pytest.raises(ValueError, match="quantity"):
        amount(text)
