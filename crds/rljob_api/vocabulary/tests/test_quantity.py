"""Tests of Kubernetes quantities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.quantity import amount, covering_quantity, format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("100u", 1e-4), ("7n", 7e-9), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("3k", 3000), (4, 4)],
)
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("3k", 3000),
        ("1.5M", 1_500_000),
        ("2G", 2 * 10**9),
        ("2T", 2 * 10**12),
        ("3Ki", 3072),
        ("2Mi", 2 * 1024**2),
        ("1.5Gi", 1_610_612_736),
        ("2Ti", 2 * 1024**4),
    ],
)
def test_bytes_of_a_quantity(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "1E", "500m", "Gi", "1GiB"])
def test_what_is_no_quantity_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="not a quantity of bytes; write it as 16Gi or 500M"):
        parse_quantity(text)


MEBI, GIBI = 1024**2, 1024**3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0Mi"),
        (1, "1Mi"),
        (MEBI, "1Mi"),
        (MEBI + 1, "2Mi"),
        (1023 * MEBI, "1023Mi"),
        (GIBI, "1Gi"),
        (GIBI + 1, "2Gi"),
    ],
)
def test_a_quantity_covers_bytes_in_whole_units(count, text):
    assert covering_quantity(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (MEBI, "1.0 MiB"),
        (GIBI * 3 // 2, "1.5 GiB"),
        (GIBI - 1, "1024.0 MiB"),
        (2 * 1024**4, "2.0 TiB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text
