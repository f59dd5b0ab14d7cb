"""The first rows of the data as a reward is given them, with responses that nobody generated."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from rljob_api.catalogue.columns import data_columns
from rljob_api.v1alpha1 import DatasetSpec, RLJobSpec
from rljob_worker.data.source import stem
from rljob_worker.data.survey import column_text
from rljob_worker.rehearsal.functions.trials import ANSWERED_ROWS, TRIED_ROWS
from rljob_worker.rehearsal.inputs.first_rows import FirstRows
from rljob_worker.rewards.forms import PICTURES, VIDEOS
from rljob_worker.vision.videos import is_video


def reward_rows(
    spec: RLJobSpec,
    source: DatasetSpec,
    rows: FirstRows,
    prompts: Sequence[str],
    shown: Sequence[Sequence[bytes]] | None,
) -> list[dict[str, Any]]:
    """Values of JSON: encoded pictures are base64.

    prompts: texts.   shown: pictures and videos of each prompt; None: the model sees none.
    """
    columns, result = data_columns(spec), []
    for i in range(min(TRIED_ROWS, rows.num_seen)):
        row: dict[str, Any] = {name: column_text(rows.values[name][i], name, rows.where(i)) for name in columns}
        response = row[columns[0]] if columns and i < ANSWERED_ROWS else prompts[i]
        row |= {"source": source.name or stem(source.path), "prompt": prompts[i], "response": response}
        row |= {"num_response_tokens": max(1, len(response.split())), "row_id": i}
        result.append(row | ({} if shown is None else _shown(shown[i])))
    return result


def _shown(encoded: Sequence[bytes]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {PICTURES: [], VIDEOS: []}
    for item in encoded:
        result[VIDEOS if is_video(item) else PICTURES].append(base64.b64encode(item).decode())
    return result
