"""Numbers, durations and sizes as text."""

import pytest

from rljob_worker.cli.views.figures import count, duration, format_number, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.5123, "0.512"),
        (-0.0012, "-0.0012"),
        (0.00002, "0.00002"),
        (1.2e-7, "1.2e-07"),
        (123456, "123456"),
        (12.34, "12.3"),
    ],
)
def test_number(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.42, "0.42s"), (8.14, "8.1s"), (185, "3m05s"), (7620, "2h07m"), (273_600, "3d04h")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_counts_and_sizes():
    assert [count(value) for value in (None, 950, 1234, 3_400_000)] == ["–", "950", "1.2k", "3.4M"]
    assert [size(value) for value in (None, 12, 1.5 * 2**20)] == ["–", "12 B", "1.5 MiB"]
