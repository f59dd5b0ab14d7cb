"""Requests whose prompts show pictures."""

from __future__ import annotations

import numpy as np

from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.requests import Requests


def require_pictures(reader: PictureReader, requests: Requests) -> None:
    """Raises BadData, naming the first row, for a prompt whose picture tokens are not those of its pictures."""
    prompts, first = np.unique(requests.prompt_of, return_index=True)
    for prompt, request in zip(prompts.tolist(), first.tolist(), strict=True):
        blob = b"" if requests.pictures is None else requests.pictures.row(prompt)
        reader.require_fit(requests.prompts.row(prompt), blob, int(requests.row_ids[request]))
