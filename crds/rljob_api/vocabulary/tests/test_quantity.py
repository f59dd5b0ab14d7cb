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
