"""What a column is made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.errors import BadData


@dataclass(frozen=True, slots=True)
class Kind:
    """What a column is made of: logical type, shape of one value ("tail"), whether rows, or groups, are runs of it."""

    dtype: str
    storage: str
    tail: tuple[int, ...]
    ragged: bool
    per_group: bool = False

    @property
    def item_bytes(self) -> int:
        return _item_bytes(self.storage, self.tail)

    def to_json(self) -> list[Any]:
        return [self.dtype, self.storage, list(self.tail), self.ragged, self.per_group]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Kind:
        dtype, storage, tail, ragged, per_group = value
        return Kind(dtype, storage, tuple(tail), ragged, per_group)


def kind_of(column: Column) -> Kind:
    """Raises BadData for values that are not plain numbers, which only a pickle could carry."""
    if column.values.dtype.kind not in "biuf":
        raise BadData(
            f"a column of {column.values.dtype} values cannot cross a buffer edge; use numbers, bool or text (utf8)"
        )
    storage, tail = _name_of(column.values.dtype), column.values.shape[1:]
    return Kind(column.dtype, storage, tail, column.is_ragged, column.per_group)


@functools.cache
def _item_bytes(storage: str, tail: tuple[int, ...]) -> int:
    return np.dtype(storage).itemsize * math.prod(tail)


_name_of = functools.cache(lambda dtype: str(dtype.name))  # numpy works the name out anew every time
