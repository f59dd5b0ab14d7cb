"""Reports on their way up a tree: the same bytes whatever the tree, and every sum that of one exact addition."""

import contextlib
import json
import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.errors import BadData
from rljob_worker.metrics.report import (
    INFINITE,
    MAX_SAMPLE_BYTES,
    MAX_SAMPLES,
    StepReport,
    exact_sum,
    merge_reports,
    report_from_bytes,
    report_to_bytes,
)
from rljob_worker.metrics.scalars import Scalar, maximum, mean, merge_all, total

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e280, max_value=1e280)
ANY_NUMBERS = st.floats()
FIELDS = ("sum", "count", "max")


def scalars(kind, numbers):
    return st.builds(Scalar, st.just(kind), numbers, numbers, numbers)


def reports(numbers):
    metrics = st.fixed_dictionaries(
        {},
        optional={name: scalars(kind, numbers) for name, kind in (("a", "mean"), ("b", "total"), ("c", "maximum"))},
    )
    samples = st.lists(st.integers(0, 99).map(lambda n: {"n": n}), max_size=3)
    return st.builds(StepReport, metrics, samples)


def of_workers(result):
    return [report_to_bytes(report, ordinal) for ordinal, report in enumerate(result)]


def through_a_tree(parts, rng):
    """Parts merged in groups of random size, met in random order, until one is left."""
    parts = list(parts)
    while len(parts) > 1:
        rng.shuffle(parts)
        size = rng.randint(2, max(2, len(parts)))
        parts = [*parts[size:], merge_reports(parts[:size])]
    return parts[0]


@given(st.lists(reports(ANY_NUMBERS), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_every_tree_gives_the_same_bytes(result, rng):
    parts = of_workers(result)
    assert merge_reports([through_a_tree(parts, rng)]) == merge_reports(parts)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_a_sum_through_a_tree_is_that_of_one_exact_addition(numbers, rng):
    parts = of_workers([StepReport({"x": Scalar("mean", number, number / 3, number)}) for number in numbers])
    merged = report_from_bytes(through_a_tree(parts, rng)).metrics["x"]
    assert merged.sum == math.fsum(numbers)
    assert merged.count == math.fsum(number / 3 for number in numbers)
    assert merged.max == max(numbers)


TENTHS = st.integers(-(10**6), 10**6).map(lambda number: number / 10)


@given(st.lists(TENTHS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_what_a_worker_merged_exactly_does_not_depend_on_which_worker_had_what(numbers, rng):
    def reported(ranks):
        parts = [merge_all([{"x": mean(number)} for number in rank], exactly=True) for rank in ranks]
        reports = [report_to_bytes(StepReport(merge_all([part])), at) for at, part in enumerate(parts)]
        return report_from_bytes(merge_reports(reports)).metrics["x"]

    cut = rng.randint(0, len(numbers))
    result = [
        reported(ranks) for ranks in ([numbers], [numbers[:cut], numbers[cut:]], [[number] for number in numbers])
    ]
    assert result[0].sum == result[1].sum == result[2].sum == math.fsum(numbers)


def test_what_one_float_cannot_hold_is_carried_on():
    """1e16 + 1 is 1e16 in floats, and 1 is lost; 1e16 + 1 + 1 is 1e16 + 2."""
    assert exact_sum([1e16, 1.0]) == [1e16, 1.0]
    one, two, big = of_workers([StepReport({"x": total(value)}) for value in (1.0, 1.0, 1e16)])
    early = merge_reports([merge_reports([big, one]), two])
    assert report_from_bytes(early).metrics["x"].sum == 1e16 + 2
    assert exact_sum([0.1, 0.2]) == [0.1 + 0.2, -2.7755575615628914e-17]
    assert exact_sum([]) == exact_sum([1.0, -1.0]) == [0.0]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1.0, -math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([1e300, 1e300], math.inf),  # too large to be added up
        ([-1e300, 1.0], -math.inf),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_what_is_no_number_spoils_a_sum_and_breaks_nothing(numbers, expected):
    parts = of_workers([StepReport({"x": total(number)}) for number in numbers])
    result = report_from_bytes(merge_reports(parts)).metrics["x"].sum
    assert math.copysign(1.0, result) == math.copysign(1.0, expected)
    assert result == expected or (math.isnan(result) and math.isnan(expected))


@pytest.mark.parametrize("field", FIELDS)
def test_numbers_are_infinite_from_a_bound_on(field):
    def reported(number):
        scalar = Scalar("total", **{name: number if name == field else 1.0 for name in FIELDS})
        return getattr(report_from_bytes(report_to_bytes(StepReport({"x": scalar}), 0)).metrics["x"], field)

    assert reported(INFINITE / 2) == INFINITE / 2 == 2.0**959
    assert reported(INFINITE) == reported(math.inf) == math.inf
    assert reported(-INFINITE) == -math.inf
    assert math.copysign(1.0, reported(-0.0)) == 1.0
    assert math.copysign(1.0, reported(-math.nan)) == 1.0


def test_a_nan_spoils_a_maximum_wherever_it_is():
    parts = of_workers([StepReport({"x": maximum(number)}) for number in (math.nan, 2.0)])
    for order in (parts, parts[::-1]):
        assert math.isnan(report_from_bytes(merge_reports(order)).metrics["x"].max)


def test_a_report_survives_the_wire_exactly():
    report = StepReport({"a": mean(0.1 + 0.2, 3), "b": total(7), "c": maximum(-1.5)}, [{"x": "ä\ud800", "n": 1 << 70}])
    assert report_from_bytes(report_to_bytes(report, 3)) == report
    assert report_from_bytes(merge_reports([])) == StepReport()


def test_a_metric_that_only_some_have_is_kept_and_names_are_in_order():
    parts = of_workers([StepReport({"b": total(1)}), StepReport({"a": total(2), "b": total(3)})])
    merged = report_from_bytes(merge_reports(parts)).metrics
    assert list(merged) == ["a", "b"]
    assert (merged["a"].value, merged["b"].value) == (2, 4)
    assert list(report_from_bytes(report_to_bytes(StepReport({"b": total(1), "a": total(2)}), 0)).metrics) == ["a", "b"]


def test_a_metric_of_two_kinds_is_refused_by_name():
    parts = of_workers([StepReport({"x": total(1)}), StepReport({"x": mean(1)})])
    with pytest.raises(BadData, match="metric 'x' comes as a mean and as a total from different workers"):
        merge_reports(parts)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x00",
        msgspec.msgpack.encode([{"x": ["median", [1.0], [1.0], 1.0]}, [], None]),
        msgspec.msgpack.encode([{"x": ["mean", [], [1.0], 1.0]}, [], None]),
        msgspec.msgpack.encode([{"x": ["mean", [1.0], [], 1.0]}, [], None]),
        msgspec.msgpack.encode([{}, [[[0, 0], "no bytes"]], None]),
    ],
)
def test_bytes_that_are_no_report_are_refused(payload):
    for read in (report_from_bytes, lambda payload: merge_reports([payload])):
        with pytest.raises(BadData, match=f"^{len(payload)} bytes that came as a report of metrics are none: "):
            read(payload)


def test_a_sample_that_is_no_json_is_refused():
    payload = msgspec.msgpack.encode([{}, [[[0, 0], b"{"]], None])
    with pytest.raises(BadData, match="came as a report of metrics are none: Expecting property name"):
        report_from_bytes(payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_report_or_refused(payload):
    with contextlib.suppress(BadData):
        assert isinstance(report_from_bytes(payload), StepReport)


def shown(payload):
    return [(sample["worker"], sample["n"]) for sample in report_from_bytes(payload).samples]


def with_samples(num_workers, item, text=""):
    """Samples of each worker as (worker, number in its report)."""
    return [
        report_to_bytes(StepReport(samples=[{"worker": worker, "n": n, "text": text} for n in range(item)]), worker)
        for worker in range(num_workers)
    ]


def test_samples_are_in_the_order_of_workers():
    parts = with_samples(12, 2)
    assert shown(merge_reports(parts[::-1])) == [(worker, n) for worker in range(12) for n in range(2)]


def test_samples_are_bounded_in_number():
    parts = with_samples(40, 2)
    assert MAX_SAMPLES == 64
    assert shown(merge_reports(parts)) == [(worker, n) for worker in range(32) for n in range(2)]
    assert shown(merge_reports(with_samples(32, 2))) == shown(merge_reports(parts))
    (many,) = with_samples(1, 65)
    assert shown(many) == [(0, n) for n in range(64)]


def test_samples_are_bounded_in_bytes_but_the_first_is_always_shown():
    size = len(json.dumps({"worker": 0, "n": 0, "text": ""}))
    assert MAX_SAMPLE_BYTES == 2**20
    half = "x" * (MAX_SAMPLE_BYTES // 2 - size)
    parts = with_samples(3, 1, half)
    assert shown(merge_reports(parts[:2])) == [(0, 0), (1, 0)]  # exactly as much as there is room for
    assert shown(merge_reports(parts)) == [(0, 0), (1, 0)]
    too_much = with_samples(2, 2, "x" * MAX_SAMPLE_BYTES)
    assert shown(too_much[1]) == [(1, 0)]
    assert shown(merge_reports(too_much[::-1])) == [(0, 0)]


def test_none_is_shown_after_one_that_had_no_room():
    """A small sample does not take the place of a large one before it: how a tree is made would decide whether."""
    large, larger, small = (
        report_to_bytes(StepReport(samples=[{"worker": worker, "n": 0, "text": "x" * size}]), worker)
        for worker, size in enumerate((MAX_SAMPLE_BYTES // 2, MAX_SAMPLE_BYTES, 1))
    )
    assert shown(merge_reports([large, larger, small])) == [(0, 0)]
    assert shown(merge_reports([merge_reports([large, larger]), small])) == [(0, 0)]
    assert shown(merge_reports([large, merge_reports([larger, small])])) == [(0, 0)]
    assert shown(merge_reports([large, small])) == [(0, 0), (2, 0)]


@given(
    st.lists(st.lists(st.sampled_from([1, 300_000, 600_000]), max_size=20), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40)
def test_which_samples_are_shown_does_not_depend_on_the_tree(sizes, rng):
    texts = {size: "x" * size for size in (1, 300_000, 600_000)}
    parts = [
        report_to_bytes(StepReport(samples=[{"text": texts[size]} for size in of_worker]), worker)
        for worker, of_worker in enumerate(sizes)
    ]
    assert merge_reports([through_a_tree(parts, rng)]) == merge_reports(parts)


def test_a_wide_job_gives_what_one_addition_gives():
    """1,024 hosts in a tree of fan-out 32."""
    rng = random.Random(5)
    values = [rng.gauss(0.0, 1.0) * 10.0 ** rng.randint(-12, 12) for _ in range(1024)]
    level = of_workers([StepReport({"x": mean(value)}) for value in values])
    while len(level) > 1:
        level = [merge_reports(level[i : i + 32]) for i in range(0, len(level), 32)]
    merged = report_from_bytes(level[0]).metrics["x"]
    assert (merged.sum, merged.count) == (math.fsum(values), 1024.0)
