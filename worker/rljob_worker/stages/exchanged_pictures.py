"""Does the policy see? Its log-probs of one batch, with the pictures of prompts and with those of others.

A model that gets no pictures, in rollout and in training alike, shows no mismatch between the two and learns all the
same, from texts alone. With other pictures of the same size its log-probs are the same, and those of a model that sees
are not.
"""

from __future__ import annotations

import io
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from rljob_api.catalogue.columns import IMAGES, ROUTES
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.protocols import ScoringEngine
from rljob_worker.errors import BadData
from rljob_worker.stages.stage import Reduce
from rljob_worker.vision.pictures import PictureList, Pixels, decode, read_header
from rljob_worker.vision.videos import decode_frames, is_video, read_video_header, still

LEAST_CHANGE = 1e-6
"""Nats: a smaller change of every log-prob is none."""

NUM_GROUPS = 8
"""Groups of each rank that are scored, one row of each."""


class SeesPictures:
    """Checks a policy once, in the first step in which some rank has a prompt with pictures."""

    def __init__(self, spec: RLJobSpec, policy: str) -> None:
        self._policy, self._column = policy, spec.data.images_column or spec.data.videos_column
        self._is_done = not spec.sees

    def check(self, batch: Batch, engine: ScoringEngine, reduce: Reduce) -> None:
        """Collective over the ranks of the engine, with the weights that drew the rows. batch: this rank's rows.

        Raises BadData where other pictures change no log-prob of any rank.
        """
        if self._is_done:
            return
        rows, exchanged = exchanged_rows(batch)
        before, after = engine.log_probs(rows), engine.log_probs(exchanged)
        change = float(np.abs(_values(before) - _values(after)).max(initial=0.0))
        num_exchanged = sum(len(blob) > 0 for blob in rows.columns[IMAGES].to_list())
        total = reduce(torch.tensor([float(num_exchanged), change], dtype=torch.float64)).tolist()
        if not total[0]:
            return  # no rank has a picture yet
        self._is_done = True
        if total[1] < LEAST_CHANGE:
            raise BadData(
                f"policy {self._policy} does not see: log-probs of {int(total[0])} rows stay the same with the "
                f"pictures of other prompts (column images, of the data's column {self._column or 'unset'}). Its rows "
                "are computed from texts alone; look at the vision tower of the model's weights and at how prompts "
                "place pictures"
            )


def exchanged_rows(batch: Batch) -> tuple[Batch, Batch]:
    """A row of each of the first groups, and these rows with the pictures of other prompts."""
    heads = np.unique(batch.index.heads())[:NUM_GROUPS]
    columns = {name: batch.column_of(name, heads) for name in _read(batch)}
    rows = Batch.build(batch.row_ids[heads], batch.group_ids[heads], columns, batch.num_tokens[heads])
    blobs = Column.binary(exchanged([PictureList.unpack(blob) for blob in columns[IMAGES].to_list()]))
    return rows, rows.with_columns({IMAGES: blobs})


def _read(batch: Batch) -> list[str]:
    return [name for name in ("prompt_ids", "response_ids", IMAGES, *ROUTES) if name in batch]


def exchanged(prompts: Sequence[Sequence[bytes | memoryview]]) -> list[bytes]:
    """Packed pictures for each prompt: every picture replaced by the next different one of its size, of another prompt
    where there is one, else by its negative, so that prompts keep their tokens. Likewise videos of one size and times.
    """
    by_form: dict[Hashable, list[bytes]] = {}
    for pictures in prompts:
        for encoded in pictures:
            by_form.setdefault(_form(encoded), []).append(bytes(encoded))
    others = {form: _next_different(dict.fromkeys(of_form)) for form, of_form in by_form.items()}
    return [PictureList.pack([others[_form(encoded)][bytes(encoded)] for encoded in pictures]) for pictures in prompts]


def _form(encoded: bytes | memoryview) -> Hashable:
    """Equal for pictures and videos that prompts have the same tokens of."""
    return read_video_header(encoded) if is_video(encoded) else read_header(encoded).size


def _next_different(pictures: Mapping[bytes, None]) -> dict[bytes, bytes]:
    names = list(pictures)
    if len(names) == 1:
        return {names[0]: negative(names[0])}
    return dict(zip(names, [*names[1:], names[0]], strict=True))


def negative(encoded: bytes) -> bytes:
    """A picture of the same size with every channel inverted, as a PNG; of a video one that shows that of its first
    frame at the same times."""
    if is_video(encoded):
        return still(read_video_header(encoded), _png(255 - decode_frames(encoded, [0])[0]))
    return _png(255 - decode(encoded))


def _png(pixels: Pixels) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _values(column: Column) -> np.ndarray:
    return np.asarray(column.values, np.float64)
