"""The files of a checkpoint that sees, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATCH_SIZES = {"qwen2_5_vl": 14, "qwen3_vl": 16, "qwen3_vl_moe": 16}
START, PAD, END, VIDEO_PAD = 5, 6, 7, 11
"""Token ids of a picture's start, of each of its merged patches, and of its end; of each merged patch of a video."""


def checkpoint(folder: Path, model_type: str = "qwen2_5_vl", **processor: Any) -> Path:
    """`config.json` and `preprocessor_config.json` in a folder. processor: settings in place of the usual ones."""
    size = PATCH_SIZES.get(model_type, 14)
    config = {
        "model_type": model_type,
        "vision_start_token_id": START,
        "image_token_id": PAD,
        "vision_end_token_id": END,
        "video_token_id": VIDEO_PAD,
        "vision_config": {"patch_size": size, "spatial_merge_size": 2, "temporal_patch_size": 2},
    }
    settings = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": size, "merge_size": 2}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | processor))
    return folder
