"""What stages write about single tokens, for the few rows of a step that a person may look into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Trajectories

NUM_ROWS = 2
"""Rows that are written of each step: the last rows of its first trajectories."""
MAX_TOKENS = 512
"""Tokens that are written of each row, at most: its first; two rows take some 50 kB of samples.jsonl."""
_DIGITS = 4
_TEXTS = "response_ids"
_NOT_SHOWN = ("prompt_ids",)
_VERSIONS = "token_versions"
"""Shown of rows that were drawn with several."""


def token_samples(
    batch: Batch,
    decode: Callable[[np.ndarray], str],
    *,
    first_row: int,
    rows_per_trajectory: int = 1,
    num_agents: int = 1,
) -> list[dict[str, Any]]:
    """A record for each of the step's first trajectories that is here, of the columns that have one value per response
    token: of its last row.

    `{"row_id": 16, "tokens": {"text": ["4", "<eos>"], "rollout_log_probs": [-0.1, -0.02]}}`; stages of one step, and
    of several workers, each report their own columns of a row. first_row: the step's first row_id.
    """
    columns = {name: column for name, column in batch.columns.items() if _is_of_tokens(name, column)}
    if not columns:
        return []
    last = Trajectories(batch.row_ids, rows_per_trajectory, num_agents).last
    rows: list[int] = last[batch.row_ids[last] - first_row < NUM_ROWS * rows_per_trajectory].tolist()
    return [{"row_id": int(batch.row_ids[row]), "tokens": _tokens(columns, row, decode)} for row in rows]


def _tokens(columns: Mapping[str, Column], row: int, decode: Callable[[np.ndarray], str]) -> dict[str, list[Any]]:
    runs = {name: column.row(row) for name, column in columns.items()}
    if _VERSIONS in runs and len(np.unique(runs[_VERSIONS])) <= 1:
        del runs[_VERSIONS]
    return {_shown_name(name): _shown(name, values[:MAX_TOKENS], decode) for name, values in runs.items()}


def _is_of_tokens(name: str, column: Column) -> bool:
    if name == _TEXTS:
        return True
    is_number = column.dtype in ("float32", "float64", "bool", "int8", "uint8", "int32", "int64")
    is_flat = column.offsets is not None and column.values.ndim == 1
    return is_number and is_flat and not column.per_group and name not in _NOT_SHOWN


def _shown_name(name: str) -> str:
    return "text" if name == _TEXTS else name


def _shown(name: str, values: np.ndarray, decode: Callable[[np.ndarray], str]) -> list[Any]:
    if name == _TEXTS:
        return [decode(values[i : i + 1]) for i in range(len(values))]
    if values.dtype.kind == "f":
        return [round(float(value), _DIGITS) for value in values]
    return [int(value) for value in values]
