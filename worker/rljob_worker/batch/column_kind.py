"""What a column is made of."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.errors import BadData

MAX_VALUES = 1 << 20
"""Bound on the length of one value along each of its dimensions."""
_NUMBERS = frozenset(np.dtype(code).name for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"])


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What a column is made of: logical type, shape of one value ("tail"), whether rows, or groups, are runs of it."""

    dtype: str
    storage: str
    tail: tuple[int, ...]
    ragged: bool
    per_group: bool = False

    @property
    def item_bytes(self) -> int:
        return _item_bytes(self.storage, self.tail)

    @property
    def is_possible(self) -> bool:
        """Whether a column can be so: what another process says may be anything."""
        is_run = self.ragged or not self.per_group
        return self.storage in _NUMBERS and is_run and all(0 <= size < MAX_VALUES for size in self.tail)


def column_kind_of(column: Column) -> ColumnKind:
    """Raises BadData for values that are not plain numbers, which only a pickle could carry."""
    if column.values.dtype.kind not in "biuf":
        raise BadData(
            f"a column of {column.values.dtype} values cannot cross a buffer edge; use numbers, bool or text (utf8)"
        )
    storage, tail = _name_of(column.values.dtype), column.values.shape[1:]
    return ColumnKind(column.dtype, storage, tail, column.is_ragged, column.per_group)


@functools.cache
def _item_bytes(storage: str, tail: tuple[int, ...]) -> int:
    return np.dtype(storage).itemsize * math.prod(tail)


_name_of = functools.cache(lambda dtype: str(dtype.name))  # numpy works the name out anew every time
