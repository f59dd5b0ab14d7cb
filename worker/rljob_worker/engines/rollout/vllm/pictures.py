"""Pictures and videos of a request as vLLM takes them: patches that our processor made, and where their tokens are.

vLLM's own processor is not asked: tokens of pictures are in the prompt already, as often as features come, and what the
policy is shown is what the trainer reads.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange

from rljob_worker.batch import Indices
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.prompt_pictures import Picture
from rljob_worker.engines.rollout.responses import Response

_IMAGE, _VIDEO = "image", "video"


class PictureInputs:
    """Makes the inputs of requests that come together; pictures that several of them show are in memory once."""

    def __init__(self, reader: PictureReader) -> None:
        self._reader = reader
        self._items: dict[bytes, MultiModalKwargsItem] = {}

    def of(self, response: Response) -> Any:
        """What the library is given of a request that shows something. Raises BadData naming its row."""
        shown = self._reader.prompt_pictures(response.prompt, response.pictures, response.row_id)
        ends = 0
        items: dict[str, list[MultiModalKwargsItem]] = {}
        digests: dict[str, list[str]] = {}
        places: dict[str, list[PlaceholderRange]] = {}
        for picture in shown.pictures:
            kind = _VIDEO if picture.is_video else _IMAGE
            items.setdefault(kind, []).append(self._item(picture))
            digests.setdefault(kind, []).append(picture.digest.hex())
            at = shown.places[ends : ends + picture.num_features]
            # vLLM looks for the frames of a video from the start of the first one on
            starts = int(at[0]) - (picture.is_video and self._reader.writes_times)
            places.setdefault(kind, []).append(_range(starts, at))
            ends += picture.num_features
        return mm_input(response.sequence(), MultiModalKwargsItems(items), digests, places)

    def _item(self, picture: Picture) -> MultiModalKwargsItem:
        if picture.digest not in self._items:
            kind, suffix = (_VIDEO, "_videos") if picture.is_video else (_IMAGE, "")
            grids = torch.from_numpy(picture.grid)[None]
            inputs = {f"pixel_values{suffix}": torch.from_numpy(picture.pixel_values), f"{kind}_grid_thw": grids}
            fields = {
                f"pixel_values{suffix}": MultiModalFieldConfig.flat_from_sizes(kind, grids.prod(-1)),
                f"{kind}_grid_thw": MultiModalFieldConfig.batched(kind, keep_on_cpu=True),
            }
            if picture.is_video:  # read by Qwen2.5-VL; the others have times in their prompts
                inputs["second_per_grid_ts"] = torch.tensor([picture.seconds])
                fields["second_per_grid_ts"] = MultiModalFieldConfig.batched(kind, keep_on_cpu=True)
            (self._items[picture.digest],) = MultiModalKwargsItems.from_hf_inputs(inputs, fields)[kind]
        return self._items[picture.digest]


def _range(start: int, places: Indices) -> PlaceholderRange:
    """Where a picture is in its prompt: from `start` to the last of its features, ascending, with what is between."""
    length = int(places[-1]) + 1 - start
    if length == len(places):
        return PlaceholderRange(offset=start, length=length)
    is_feature = torch.zeros(length, dtype=torch.bool)
    is_feature[torch.from_numpy(places - start)] = True
    return PlaceholderRange(offset=start, length=length, is_embed=is_feature)
