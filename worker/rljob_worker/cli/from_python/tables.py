"""Data that a program holds, as a file that every process of a job reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_worker.errors import BadData


def write_table(data: Any, path: Path) -> None:
    """Write rows as parquet: a list of mappings, a table of pandas or Arrow, or a `datasets.Dataset`.

    Raises BadData, with what can be written, for other things, and for no rows.
    """
    table = _as_arrow(data)
    if table.num_rows == 0:
        raise BadData("the data have no rows")
    pq.write_table(table, path)


def _as_arrow(data: Any) -> pa.Table:
    try:
        if isinstance(data, pa.Table):
            return data
        if isinstance(data, Sequence) and not isinstance(data, str | bytes):
            return pa.Table.from_pylist(list(data))
        kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
        if kind == "pandas.DataFrame":
            return pa.Table.from_pandas(data, preserve_index=False)
        if kind == "datasets.Dataset":
            return data.with_format("arrow")[:]
    except (pa.ArrowException, AttributeError) as error:
        raise BadData(f"the data are no table: {error}") from error
    raise BadData(
        f"data are a path, a list of mappings, a pandas.DataFrame, a pyarrow.Table or a datasets.Dataset, not {kind}"
        + ("; choose one of its splits" if kind == "datasets.DatasetDict" else "")
    )
