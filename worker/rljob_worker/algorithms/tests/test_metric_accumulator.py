"""Metrics that stay on the device, of several micro-batches."""

from rljob_worker.algorithms.metric_accumulator import Measured, MetricAccumulator, read_all
from rljob_worker.algorithms.tests.builders import double, ints
from rljob_worker.metrics.scalars import maximum, mean


def test_metrics_of_several_micro_batches_are_read_together():
    first, second = MetricAccumulator(), MetricAccumulator()
    first.mean_of("ratio", double(1, 2, 6))  # 9 over 3, which the host knows
    first.mean("row", double(4, 5).sum(), ints(1, 1).sum())  # 9 over 2, which the device knows
    first.maximum("largest", double(3, 7))
    second.mean_of("ratio", double(5))
    second.maximum("largest", double())
    second.mean_if_any("age", double(2).sum(), ints(0).sum())
    read = read_all([first.measured(), Measured(), second.measured()])
    assert read == [{"ratio": mean(9, 3), "row": mean(9, 2), "largest": maximum(7)}, {}, {"ratio": mean(5, 1)}]
    assert read_all([]) == [] and read_all([Measured()]) == [{}]
