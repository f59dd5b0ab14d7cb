"""What columns are made of."""

import numpy as np
import pytest

from rljob_worker.batch import Column
from rljob_worker.batch.column_kind import ColumnKind, column_kind_of
from rljob_worker.databuffer.rows.tests.batches import batch_of
from rljob_worker.errors import BadData


def test_the_kinds_of_a_batch():
    kinds = {name: column_kind_of(column) for name, column in batch_of([1, 2]).columns.items()}
    assert kinds["bf16"] == ColumnKind("bfloat16", "uint16", (), True)
    assert kinds["image"] == ColumnKind("float16", "float16", (2, 3), False)
    assert kinds["prompt"] == ColumnKind("int64", "int64", (), True, per_group=True)
    assert kinds["flags"] == ColumnKind("bool", "bool", (), True)


@pytest.mark.parametrize(
    "kind",
    [
        ColumnKind("object", "object", (), True),
        ColumnKind("int64", "no type", (), True),
        ColumnKind("int64", "i4,f8", (), True),
        ColumnKind("complex64", "complex64", (), True),
        ColumnKind("int64", "int64", (-1,), True),
        ColumnKind("int64", "int64", (2, 1 << 20), True),
        ColumnKind("int64", "int64", (), False, True),
    ],
)
def test_kinds_that_no_column_has_are_known(kind: ColumnKind):
    assert not kind.is_possible
    assert all(column_kind_of(column).is_possible for column in batch_of([1]).columns.values())
    assert ColumnKind("float64", "float64", ((1 << 20) - 1,), True, True).is_possible


def test_an_item_takes_what_all_numbers_of_its_shape_take():
    assert ColumnKind("float16", "float16", (2, 3), False).item_bytes == 12
    assert ColumnKind("int64", "int64", (), True).item_bytes == 8


def test_objects_are_refused():
    with pytest.raises(BadData, match="a column of object values cannot cross"):
        column_kind_of(Column(np.array([{}], object), None, "object"))
