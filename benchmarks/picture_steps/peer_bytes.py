"""Bytes of rows with pictures as verl and TransferQueue serialise them: `peer_bytes.py ROWS PATCHES NUMBERS`, run by
their own Python.

verl           DataProto with `multi_modal_inputs` of every row, as its agent loop makes them: pickled, as Ray does it
TransferQueue  the same columns as its client encodes them for a storage unit
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from ray import cloudpickle
from tensordict import TensorDict
from transfer_queue.utils import serial_utils
from verl import DataProto

TOKENS = 760
"""Prompt and response of a row."""


def main(rows: int, patches: int, numbers: int) -> None:
    tokens = {name: torch.ones(rows, TOKENS, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    tokens["position_ids"] = torch.ones(rows, 4, TOKENS, dtype=torch.int64)
    side = int(patches**0.5)
    grid = torch.tensor([[1, side, side]])
    shown = [{"pixel_values": torch.rand(patches, numbers), "image_grid_thw": grid.clone()} for _ in range(rows)]
    proto = DataProto.from_dict(tokens, non_tensors={"multi_modal_inputs": np.array(shown, dtype=object)})
    pixels = torch.nested.as_nested_tensor([item["pixel_values"] for item in shown], layout=torch.jagged)
    fields = TensorDict({**tokens, "pixel_values": pixels, "image_grid_thw": grid.repeat(rows, 1)}, batch_size=rows)
    sizes = {
        "verl, DataProto": len(cloudpickle.dumps(proto, protocol=5)),
        "TransferQueue": sum(memoryview(frame).nbytes for frame in serial_utils.encode(fields)),
    }
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
