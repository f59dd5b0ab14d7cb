"""What columns are made of."""

import numpy as np
import pytest

from rljob_worker.batch import Column
from rljob_worker.column_kind import Kind, kind_of
from rljob_worker.databuffer.rows.tests.batches import batch_of
from rljob_worker.errors import BadData


def test_the_kinds_of_a_batch():
    kinds = {name: kind_of(column) for name, column in batch_of([1, 2]).columns.items()}
    assert kinds["bf16"] == Kind("bfloat16", "uint16", (), True)
    assert kinds["image"] == Kind("float16", "float16", (2, 3), False)
    assert kinds["prompt"] == Kind("int64", "int64", (), True, per_group=True)
    assert kinds["flags"] == Kind("bool", "bool", (), True)


@pytest.mark.parametrize(
    "kind",
    [
        Kind("object", "object", (), True),
        Kind("int64", "no type", (), True),
        Kind("int64", "i4,f8", (), True),
        Kind("complex64", "complex64", (), True),
        Kind("int64", "int64", (-1,), True),
        Kind("int64", "int64", (2, 1 << 20), True),
        Kind("int64", "int64", (), False, True),
    ],
)
def test_kinds_that_no_column_has_are_known(kind: Kind):
    assert not kind.is_possible
    assert all(kind_of(column).is_possible for column in batch_of([1]).columns.values())
    assert Kind("float64", "float64", ((1 << 20) - 1,), True, True).is_possible


def test_an_item_takes_what_all_numbers_of_its_shape_take():
    assert Kind("float16", "float16", (2, 3), False).item_bytes == 12
    assert Kind("int64", "int64", (), True).item_bytes == 8


def test_objects_are_refused():
    with pytest.raises(BadData, match="a column of object values cannot cross"):
        kind_of(Column(np.array([{}], object), None, "object"))
