"""Pictures of a request as vLLM takes them: patches that our processor made, and where their tokens are.

vLLM's own processor is not asked: tokens of pictures are in the prompt already, as often as features come, and what the
policy is shown is what the trainer reads.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.inputs.engine import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange

from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.prompt_pictures import Picture
from rljob_worker.engines.rollout.vllm.responses import Response

_KIND = "image"


class PictureInputs:
    """Makes the inputs of requests that come together; pictures that several of them show are in memory once."""

    def __init__(self, reader: PictureReader) -> None:
        self._reader = reader
        self._items: dict[bytes, MultiModalKwargsItem] = {}

    def of(self, response: Response) -> Any:
        """What the library is given of a request that shows something. Raises BadData naming its row."""
        shown = self._reader.prompt_pictures(response.prompt, response.pictures, response.row_id)
        ends, places = 0, []
        for picture in shown.pictures:
            places.append(PlaceholderRange(offset=int(shown.places[ends]), length=picture.num_features))
            ends += picture.num_features
        return mm_input(
            response.sequence(),
            MultiModalKwargsItems({_KIND: [self._item(picture) for picture in shown.pictures]}),
            {_KIND: [picture.digest.hex() for picture in shown.pictures]},
            {_KIND: places},
        )

    def _item(self, picture: Picture) -> MultiModalKwargsItem:
        if picture.digest not in self._items:
            grids = torch.from_numpy(picture.grid)[None]
            inputs = {"pixel_values": torch.from_numpy(picture.pixel_values), "image_grid_thw": grids}
            fields = {
                "pixel_values": MultiModalFieldConfig.flat_from_sizes(_KIND, grids.prod(-1)),
                "image_grid_thw": MultiModalFieldConfig.batched(_KIND, keep_on_cpu=True),
            }
            (self._items[picture.digest],) = MultiModalKwargsItems.from_hf_inputs(inputs, fields)[_KIND]
        return self._items[picture.digest]
