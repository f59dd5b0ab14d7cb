"""What the prompts of a model show: encoded pictures made into patches, counted and placed.

Engines that train and engines that generate read pictures the same way, with one processor: what a policy was shown is
what it learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column, Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.models.actions import acts_by_towers
from rljob_worker.engines.models.vision import rope_positions
from rljob_worker.engines.prompt_pictures import Picture, RowPictures, ShownTokens
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.checkpoint_files import WRITE_TIMES
from rljob_worker.vision.pictures import BadPicture, PictureList, picture_digest
from rljob_worker.vision.processing import Patches, PictureShape


class Processor(Protocol):
    """What makes patches of the encoded pictures in the column `images`, as a `PictureProcessor` does."""

    def shape(self, encoded: bytes | memoryview) -> PictureShape:
        """From the headers of a picture or a video. Raises BadData for what cannot be used."""
        ...

    def patches(self, encoded: bytes | memoryview) -> Patches:
        """Raises BadData for what is not a picture."""
        ...

    def read_ahead(self, pictures: Sequence[bytes | memoryview]) -> None:
        """Begin to decode pictures, which `patches` is asked for next."""
        ...


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads the pictures of prompts for one model."""

    processor: Processor
    picture_token: int
    """Stands for one feature of a picture, in prompts."""
    video_token: int
    """Stands for one feature of a video; that of pictures where a model sees no videos."""
    merged: int
    """Patches that one feature is made of."""
    rope: Callable[[Indices, Sequence[Picture]], Indices]
    """From the tokens of a prompt and what it shows: frame, row and column of each token, [tokens, 3]."""
    writes_times: bool = False
    """Whether each patch of frames of a video has a start and an end of its own in prompts."""

    @staticmethod
    def of(model: Any, processor: Processor) -> PictureReader:
        """For a model that sees."""
        config = model.config
        if acts_by_towers(config):
            token = int(config.image_token_id)
            return PictureReader(processor, token, token, 1, _places_alone)
        tokens = int(config.image_token_id), int(config.video_token_id)
        merged = int(config.vision_config.spatial_merge_size) ** 2
        rope = partial(rope_positions, model)
        return PictureReader(processor, *tokens, merged, rope, config.model_type in WRITE_TIMES)

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

    def read_ahead(self, batch: Batch, rows: Indices, most_patches: int | None = None) -> None:
        """Begin to decode what some rows of a batch show, that of a group once. most_patches: of the first of them."""
        if IMAGES not in batch or not len(rows):
            return
        heads = rows if has_own_pictures(batch) else np.unique(batch.index.head_of(rows))
        if most_patches is not None:
            heads = heads[np.cumsum(self._patches_of(batch, heads)) <= most_patches]
        blobs = batch.column_of(IMAGES, heads).to_list()
        self.processor.read_ahead([encoded for blob in blobs for encoded in PictureList.unpack(blob)])

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
                num_tokens -= self.processor.shape(encoded).num_tokens
                digests.append(picture_digest(encoded))
        if num_tokens:
            raise BadData(f"row {row_number(row_id)}: its prompt does not have the tokens of its first pictures")
        return tuple(digests)

    def num_patches(self, tokens: Column) -> Indices:
        """int64 [rows]: patches of the pictures that prompts have tokens of; of responses at most as many."""
        assert tokens.offsets is not None, "token columns are ragged"
        before = np.concatenate([[0], np.cumsum(self._is_shown(tokens.values))])
        result: Indices = (before[tokens.offsets[1:]] - before[tokens.offsets[:-1]]) * self.merged
        return result

    def _patches_of(self, batch: Batch, rows: Indices) -> Indices:
        """int64 [rows]: those that rows show at most."""
        patches = self.num_patches(batch.column_of("prompt_ids", rows))
        if not has_own_pictures(batch):
            return patches
        return patches + self.num_patches(batch.column_of("response_ids", rows))

    def row_shown(self, prompt: Indices, response: Indices, blob: bytes, row_id: int) -> ShownTokens:
        """What one row shows, in its prompt and behind it: pictures come before what looks like them and was sampled.
        Raises BadData naming the row for pictures that are not those of its tokens."""
        tokens = np.concatenate([prompt, response])
        with _of_row(row_id):
            pictures = tuple(self._picture(encoded) for encoded in PictureList.unpack(blob))
        counts = [picture.num_features for picture in pictures]
        places = np.flatnonzero(self._is_shown(tokens))[: sum(counts)]
        self._require_equal(row_id, tokens[places], [(item.num_features, item.is_video) for item in pictures])
        end = max(len(prompt), int(places[-1]) + 1 if len(places) else 0)
        return self._shown(tokens[:end], places, pictures)

    def prompt_pictures(self, tokens: Indices, blob: bytes, row_id: int) -> ShownTokens:
        """What one prompt shows. Raises BadData naming the row for pictures that are not those of its tokens."""
        places = np.flatnonzero(self._is_shown(tokens))
        with _of_row(row_id):
            pictures = tuple(self._picture(encoded) for encoded in PictureList.unpack(blob))
        self._require_equal(row_id, tokens[places], [(item.num_features, item.is_video) for item in pictures])
        return self._shown(tokens, places, pictures)

    def require_fit(self, tokens: Indices, blob: bytes, row_id: int) -> None:
        """Raises BadData as `prompt_pictures` does, for what the sizes of pictures say, without opening them."""
        with _of_row(row_id):
            shapes = [self.processor.shape(encoded) for encoded in PictureList.unpack(blob)]
        expected = [(shape.num_tokens, shape.video is not None) for shape in shapes]
        self._require_equal(row_id, tokens[self._is_shown(tokens)], expected)

    def _is_shown(self, tokens: Indices) -> NDArray[np.bool_]:
        """Which tokens stand for features."""
        result: NDArray[np.bool_] = (tokens == self.picture_token) | (tokens == self.video_token)
        return result

    def _require_equal(self, row_id: int, tokens: Indices, expected: Sequence[tuple[int, bool]]) -> None:
        """tokens: those of features. expected: number of features of each picture, and whether it is a video."""
        counts = [count for count, _ in expected]
        pads = [self.video_token if is_video else self.picture_token for _, is_video in expected]
        if len(tokens) != sum(counts):
            raise BadData(
                f"row {row_number(row_id)}: its prompt has {len(tokens)} picture tokens, and its {len(expected)} "
                f"pictures (column {IMAGES!r}) make {sum(counts)}; engines and data must read pictures with one "
                "processor and one data.image"
            )
        if not np.array_equal(tokens, np.repeat(pads, counts)):
            raise BadData(
                f"row {row_number(row_id)}: its prompt has tokens of pictures where the column {IMAGES!r} has videos, "
                "or the reverse; a stage that makes prompts must keep them in the order of their tokens"
            )

    def _shown(self, tokens: Indices, places: Indices, pictures: tuple[Picture, ...]) -> ShownTokens:
        if not pictures:
            return ShownTokens(places, (), np.repeat(np.arange(len(tokens))[:, None], 3, axis=1))
        return ShownTokens(places, pictures, self.rope(tokens, pictures))

    def _picture(self, encoded: memoryview) -> Picture:
        patches = self.processor.patches(encoded)
        grid = np.asarray(patches.grid_thw, np.int64)
        num_features = int(grid.prod()) // self.merged
        digest = picture_digest(encoded)
        return Picture(digest, patches.pixel_values, grid, num_features, patches.is_video, patches.seconds)

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


def _places_alone(tokens: Indices, shown: Sequence[Picture]) -> Indices:
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


@contextmanager
def _of_row(row_id: int) -> Iterator[None]:
    """What is wrong with a picture, with its row."""
    try:
        yield
    except InvalidJob:
        raise
    except (BadPicture, ValueError) as error:
        raise BadData(f"row {row_number(row_id)}: {error}") from error
