"""The first rows of a data set in a store, as a run reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_worker.data.objects.opening import source_of
from rljob_worker.data.objects.store import Store
from rljob_worker.data.patience import Patience
from rljob_worker.rehearsal.inputs.first_rows import LOOK_ROWS, FirstRows
from rljob_worker.storage.address import Address

PATIENCE_SECONDS = 2.0
"""With a store that does not answer: a run has more."""


def first_stored_rows(url: str, columns: Sequence[str], count: int) -> FirstRows:
    """As `first_rows`; of Parquet whole row groups are read for it. Raises what opening and reading the data set do."""
    store = Store(Address.of(url), Patience(PATIENCE_SECONDS))
    source = source_of(None, url, store.list_files(), columns, store)
    values: dict[str, list[Any]] = {name: [] for name in columns}
    num_rows = 0
    for rows in source.scan():
        for name, found in values.items():
            found += rows.values[name][: LOOK_ROWS - len(found)]
        num_rows += len(rows.places)
        if num_rows >= max(count, LOOK_ROWS + 1):
            break
    return FirstRows(url, values, num_rows)
