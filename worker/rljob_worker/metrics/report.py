"""What workers say of a step, on its way up the tree of hosts: merged at every hop, the same whatever the tree.

    report_to_bytes(report, ordinal)  -> bytes      one worker
    merge_reports(parts)              -> bytes      any number of reports, merged ones among them
    report_from_bytes(payload)        -> Report     all workers

Sums are exact. Each travels as the float nearest to it, then the float nearest to what that leaves, and so on until
nothing is left: 0.1 + 0.2 is [0.30000000000000004, -2.8e-17], in one piece less than 1e-16 would have vanished. So the
same workers give the same bytes, in whatever order and groups their reports met.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from rljob_worker.batch.row_index import row_number
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Kind, Scalar, Scalars

MAX_SAMPLES = 64
"""A merged report shows no more rows than this: those of the first workers."""
MAX_SAMPLE_BYTES = 1 << 20
"""Nor do its rows have more bytes than this, after the first: 32 reports a hop stay small at any length of rows."""
INFINITE = 2.0**960
"""A number beyond it counts as infinite, so that no sum of numbers that are not ever overflows."""

_Place = tuple[int, int]
"""Ordinal of the worker and number of the sample in its report: the order of samples."""
_Pieces = Annotated[list[float], msgspec.Meta(min_length=1)]

_encode = msgspec.msgpack.Encoder().encode

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one worker, or all of them, say at the end of a step."""

    metrics: Scalars = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Rows worth showing to a person, in the order of the workers; JSON can hold them."""


class _Metric(msgspec.Struct, array_like=True, gc=False):
    kind: Kind
    sum: _Pieces
    count: _Pieces
    max: float


class _Sample(msgspec.Struct, array_like=True, gc=False):
    place: _Place
    text: bytes


class _Message(msgspec.Struct, array_like=True):
    metrics: dict[str, _Metric]
    samples: list[_Sample]
    """Ascending by place."""
    cut: _Place | None = None
    """The first sample that had no room; none from there on is shown, so that what is does not depend on the tree."""


_decoder = msgspec.msgpack.Decoder(_Message)


def report_to_bytes(report: StepReport, ordinal: int) -> bytes:
    """The report of the worker with this number over all groups."""
    metrics = {
        name: _Metric(
            scalar.kind,
            exact_sum([_bounded(scalar.sum), scalar.rest]),
            [_bounded(scalar.count)],
            _bounded(scalar.max),
        )
        for name, scalar in sorted(report.metrics.items())
    }
    samples = [_Sample((ordinal, i), json.dumps(sample).encode()) for i, sample in enumerate(report.samples)]
    return _encode(_Message(metrics, *_shown(samples, None)))


def merge_reports(parts: Sequence[bytes]) -> bytes:
    """One report of several. Raises BadData for what is none, and where one metric is of several kinds."""
    messages = [_decode(part) for part in parts]
    by_name: dict[str, list[_Metric]] = {}
    for message in messages:
        for name, metric in message.metrics.items():
            by_name.setdefault(name, []).append(metric)
    metrics = {name: _merged(name, by_name[name]) for name in sorted(by_name)}
    samples = sorted(chain.from_iterable(message.samples for message in messages), key=attrgetter("place"))
    cuts = [message.cut for message in messages if message.cut is not None]
    return _encode(_Message(metrics, *_shown(samples, min(cuts, default=None))))


def report_from_bytes(payload: bytes) -> StepReport:
    """What `report_to_bytes` or `merge_reports` gave; each sum rounded once. Raises BadData for anything else."""
    message = _decode(payload)
    metrics = {name: Scalar(m.kind, m.sum[0], m.count[0], m.max) for name, m in message.metrics.items()}
    try:
        return StepReport(metrics, [json.loads(sample.text) for sample in message.samples])
    except ValueError as error:
        raise _no_report(payload, error) from error


def exact_sum(numbers: Iterable[float]) -> list[float]:
    """The sum, as floats that add up to it exactly: each nearest to what those before it leave, none 0 but a lone one.

    Infinite and NaN parts give one such float.
    """
    numbers = list(numbers)
    if not all(map(math.isfinite, numbers)):
        return [_spoilt(numbers)]
    pieces = [math.fsum(numbers)]
    while rest := math.fsum(chain(numbers, (-piece for piece in pieces))):
        pieces.append(rest)
    return pieces


def _spoilt(numbers: list[float]) -> float:
    total = sum(numbers)
    return math.nan if math.isnan(total) else total  # a NaN has a sign, which depends on how it came about


def _merged(name: str, metrics: list[_Metric]) -> _Metric:
    kinds = {metric.kind for metric in metrics}
    if len(kinds) > 1:
        raise BadData(
            f"metric {name!r} comes as a {' and as a '.join(sorted(kinds))} from different workers; "
            "a metric is of one kind: give the others another name"
        )
    return _Metric(
        metrics[0].kind,
        exact_sum(chain.from_iterable(metric.sum for metric in metrics)),
        exact_sum(chain.from_iterable(metric.count for metric in metrics)),
        _largest([metric.max for metric in metrics]),
    )


def _largest(numbers: list[float]) -> float:
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def _bounded(number: float) -> float:
    """As it travels: no negative zero, one NaN, nothing finite that is too large to add up."""
    if math.isnan(number):
        return math.nan
    return float(number) + 0.0 if abs(number) < INFINITE else math.copysign(math.inf, number)


def _shown(samples: list[_Sample], cut: _Place | None) -> tuple[list[_Sample], _Place | None]:
    """The first samples, before `cut` and as many as have room; and where they end, if any was left out."""
    size = 0
    for i, sample in enumerate(samples):
        size += len(sample.text)
        if cut is not None and sample.place >= cut:
            return samples[:i], cut
        if i == MAX_SAMPLES or (i > 0 and size > MAX_SAMPLE_BYTES):
            return samples[:i], sample.place
    return samples, cut


def _decode(payload: bytes) -> _Message:
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise _no_report(payload, error) from error


def _no_report(payload: bytes, error: Exception) -> BadData:
    return BadData(f"{len(payload)} bytes that came as a report of metrics are none: {error}")


def joined_samples(samples: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Records about one row as one, in the order in which rows first come up; its `tokens` get the columns of all.

    [{row_id: 1, response: "4"}, {row_id: 1, tokens: {text: ["4"]}}, {row_id: 1, tokens: {advantages: [0.5]}}]
        -> [{row: 2, response: "4", tokens: {text: ["4"], advantages: [0.5]}}]
    """
    rows: dict[tuple[Any, ...], Record] = {}
    for number, sample in enumerate(samples):
        # a row of validation, and one that was drawn and has no place, has a number that a row of the batch has, too
        place = (sample.get("row_id", f"record {number}"), sample.get("policy"))
        key = (*place, *(sample.get(kind, False) for kind in ("validation", "dropped", "waiting")))
        row = rows.setdefault(key, {"row": row_number(sample["row_id"])} if "row_id" in sample else {})
        tokens = {**row.get("tokens", {}), **sample.get("tokens", {})}
        row |= {name: value for name, value in sample.items() if name != "row_id"}
        if tokens:
            row["tokens"] = tokens
    return list(rows.values())
