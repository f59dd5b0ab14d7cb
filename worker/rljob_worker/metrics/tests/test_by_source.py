import numpy as np

from rljob_worker.metrics.by_source import means_by_source
from rljob_worker.metrics.scalars import mean


def test_each_data_set_has_a_mean_of_its_own():
    # a: 1 + 0 + 1 of 3; b: 0.5 of 1
    found = means_by_source("accuracy", np.array([1.0, 0.5, 0.0, 1.0]), ["a", "b", "a", "a"])
    assert found == {"accuracy/a": mean(2.0, 3), "accuracy/b": mean(0.5, 1)}


def test_no_rows_have_no_data_set():
    assert means_by_source("accuracy", np.zeros(0), []) == {}
