"""What the prompts of a model show: encoded pictures made into patches, counted and placed.

Engines that train and engines that generate read pictures the same way, with one processor: what a policy was shown is
what it learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column, Indices
from rljob_worker.engines.models.actions import acts_by_towers
from rljob_worker.engines.models.vision import rope_positions
from rljob_worker.engines.prompt_pictures import Picture, RowPictures, ShownTokens
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.row_index import row_number
from rljob_worker.vision.pictures import BadPicture, PictureList, picture_digest, read_header
from rljob_worker.vision.processing import Patches


class Processor(Protocol):
    """What makes patches of the encoded pictures in the column `images`, as a `PictureProcessor` does."""

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of a picture of (height, width) in a prompt. Raises BadData for a size that none has."""
        ...

    def patches(self, encoded: bytes | memoryview) -> Patches:
        """Raises BadData for what is not a picture."""
        ...


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads the pictures of prompts for one model."""

    processor: Processor
    picture_token: int
    """Stands for one feature of a picture, in prompts."""
    merged: int
    """Patches that one feature is made of."""
    rope: Callable[[Indices, Sequence[Indices]], Indices]
    """From the tokens of a prompt and the grids of its pictures: frame, row and column of each token, [tokens, 3]."""

    @staticmethod
    def of(model: Any, processor: Processor) -> PictureReader:
        """For a model that sees."""
        config = model.config
        if acts_by_towers(config):
            return PictureReader(processor, int(config.image_token_id), 1, _places_alone)

        def rope(tokens: Indices, grids: Sequence[Indices]) -> Indices:
            return rope_positions(model, tokens, grids, ())

        return PictureReader(
            processor, int(config.image_token_id), int(config.vision_config.spatial_merge_size) ** 2, rope
        )

    def row_pictures(self, batch: Batch, rows: Indices) -> RowPictures:
        """What some rows of a batch show. Raises BadData, when a row is asked for, for one whose pictures do not belong
        to its tokens."""
        prompts = batch.column_of("prompt_ids", rows)
        if IMAGES not in batch:
            self._require_text(batch, rows, prompts)
        if has_own_pictures(batch):
            responses = batch.column_of("response_ids", rows)

            def of_own(row: int) -> ShownTokens:
                blob, row_id = batch[IMAGES].row(int(rows[row])), int(batch.row_ids[rows[row]])
                return self.row_shown(prompts.row(row), responses.row(row), blob, row_id)

            return RowPictures(self.identities(batch, rows), of_own, in_responses=True)

        def of_row(row: int) -> ShownTokens:
            blob = batch.column_of(IMAGES, rows[row : row + 1]).row(0) if IMAGES in batch else b""
            return self.prompt_pictures(prompts.row(row), blob, int(batch.row_ids[rows[row]]))

        return RowPictures(self.identities(batch, rows), of_row)

    def identities(self, batch: Batch, rows: Indices) -> Indices:
        """Numbers of some rows, equal for rows of one group, or, where pictures are no group's, for equal pictures of
        their prompts."""
        if IMAGES not in batch:
            return np.zeros(len(rows), np.int64)
        if not has_own_pictures(batch):
            return batch.index.head_of(rows)
        num_tokens = self.num_patches(batch.column_of("prompt_ids", rows)) // self.merged
        numbers: dict[tuple[bytes, ...], int] = {}
        pictures = zip(rows.tolist(), batch.column_of(IMAGES, rows).to_list(), num_tokens.tolist(), strict=True)
        digests = (self._of_prompt(int(batch.row_ids[row]), blob, tokens) for row, blob, tokens in pictures)
        return np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], np.int64)

    def _of_prompt(self, row_id: int, blob: bytes, num_tokens: int) -> tuple[bytes, ...]:
        """Digests of a row's pictures that its prompt shows, which has so many picture tokens."""
        digests = list[bytes]()
        with _of_row(row_id):
            for encoded in PictureList.unpack(blob):
                if num_tokens <= 0:
                    break
                num_tokens -= self.processor.num_tokens(read_header(encoded).size)
                digests.append(picture_digest(encoded))
        if num_tokens:
            raise BadData(f"row {row_number(row_id)}: its prompt does not have the tokens of its first pictures")
        return tuple(digests)

    def num_patches(self, tokens: Column) -> Indices:
        """int64 [rows]: patches of the pictures that prompts have tokens of; of responses at most as many."""
        assert tokens.offsets is not None, "token columns are ragged"
        before = np.concatenate([[0], np.cumsum(tokens.values == self.picture_token)])
        result: Indices = (before[tokens.offsets[1:]] - before[tokens.offsets[:-1]]) * self.merged
        return result

    def row_shown(self, prompt: Indices, response: Indices, blob: bytes, row_id: int) -> ShownTokens:
        """What one row shows, in its prompt and behind it: pictures come before what looks like them and was sampled.
        Raises BadData naming the row for pictures that are not those of its tokens."""
        tokens = np.concatenate([prompt, response])
        with _of_row(row_id):
            pictures = tuple(self._picture(encoded) for encoded in PictureList.unpack(blob))
        counts = [picture.num_features for picture in pictures]
        places = np.flatnonzero(tokens == self.picture_token)[: sum(counts)]
        _require_equal(row_id, len(places), counts)
        end = max(len(prompt), int(places[-1]) + 1 if len(places) else 0)
        return self._shown(tokens[:end], places, pictures)

    def prompt_pictures(self, tokens: Indices, blob: bytes, row_id: int) -> ShownTokens:
        """What one prompt shows. Raises BadData naming the row for pictures that are not those of its tokens."""
        places = np.flatnonzero(tokens == self.picture_token)
        with _of_row(row_id):
            pictures = tuple(self._picture(encoded) for encoded in PictureList.unpack(blob))
        _require_equal(row_id, len(places), [picture.num_features for picture in pictures])
        return self._shown(tokens, places, pictures)

    def require_fit(self, tokens: Indices, blob: bytes, row_id: int) -> None:
        """Raises BadData as `prompt_pictures` does, for what the sizes of pictures say, without opening them."""
        with _of_row(row_id):
            headers = [read_header(encoded) for encoded in PictureList.unpack(blob)]
            expected = [self.processor.num_tokens(header.size) for header in headers]
        _require_equal(row_id, int((tokens == self.picture_token).sum()), expected)

    def _shown(self, tokens: Indices, places: Indices, pictures: tuple[Picture, ...]) -> ShownTokens:
        if not pictures:
            return ShownTokens(places, (), np.repeat(np.arange(len(tokens))[:, None], 3, axis=1))
        return ShownTokens(places, pictures, self.rope(tokens, [picture.grid for picture in pictures]))

    def _picture(self, encoded: memoryview) -> Picture:
        patches = self.processor.patches(encoded)
        grid = np.asarray(patches.grid_thw, np.int64)
        return Picture(picture_digest(encoded), patches.pixel_values, grid, int(grid.prod()) // self.merged)

    def _require_text(self, batch: Batch, rows: Indices, prompts: Column) -> None:
        """Raises BadData for prompts with tokens of pictures that did not come with them."""
        blind = np.flatnonzero(self.num_patches(prompts))
        if len(blind):
            row = row_number(batch.row_ids[rows[blind[0]]])
            raise BadData(
                f"row {row}: its prompt has picture tokens, and the batch has no column {IMAGES!r}: the policy would "
                "be trained blind; a stage that makes a batch of its own must keep that column"
            )


def has_own_pictures(batch: Batch) -> bool:
    """Whether rows have pictures of their own, which may be behind their prompts: of conversations."""
    return IMAGES in batch and not batch.columns[IMAGES].per_group


def prompt_pictures(batch: Batch) -> Column | None:
    """The pictures of the prompts of a batch, in the order of its groups: binary [groups]. None where none has any."""
    return batch.column_of(IMAGES, np.unique(batch.index.heads())) if IMAGES in batch else None


def _places_alone(tokens: Indices, grids: Sequence[Indices]) -> Indices:
    """Every token is at its place, those of pictures, too."""
    return np.repeat(np.arange(len(tokens))[:, None], 3, axis=1)


def picture_digests(blob: bytes) -> tuple[bytes, ...]:
    """What a prompt shows, by the digests of its pictures."""
    return tuple(picture_digest(encoded) for encoded in PictureList.unpack(blob))


def require_no_pictures(batch: Batch, model: str) -> None:
    """Raises InvalidJob for a batch with pictures, of a model that has no reader."""
    if IMAGES in batch and batch.columns[IMAGES].values.size:
        raise InvalidJob(
            f"{model} does not see, and the batch has pictures (column {IMAGES!r}); use a model that sees, or leave "
            "data.imagesColumn out"
        )


def _require_equal(row_id: int, num_tokens: int, num_features: Sequence[int]) -> None:
    if num_tokens != sum(num_features):
        raise BadData(
            f"row {row_number(row_id)}: its prompt has {num_tokens} picture tokens, and its {len(num_features)} "
            f"pictures (column {IMAGES!r}) make {sum(num_features)}; engines and data must read pictures with one "
            "processor and one data.image"
        )


@contextmanager
def _of_row(row_id: int) -> Iterator[None]:
    """What is wrong with a picture, with its row."""
    try:
        yield
    except (BadPicture, ValueError) as error:
        raise BadData(f"row {row_number(row_id)}: {error}") from error
