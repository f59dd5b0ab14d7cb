"""How large the encoder of V-JEPA 2 is, and what a video takes in it.

With N patches of a video, hidden size h, intermediate size i and D layers, all in float32:

    patch embedding   t p² channels h + h, for patches of p pixels and t frames
    a layer           4 h² + 4 h of attention, 2 h i + i + h of the MLP, 4 h of two norms
    a video           4 N (7 h + 2 i), as a block of other towers; layers come one after another
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODEL_TYPE = "vjepa2"


@dataclass(frozen=True, slots=True)
class VideoEncoderShape:
    """A vision transformer over patches of several frames."""

    hidden: int
    intermediate: int
    layers: int
    patch: int
    tubelet: int
    crop: int
    """Pixels of a frame's side."""
    channels: int = 3

    @property
    def parameters(self) -> int:
        """Parameters of the encoder; its predictor is not loaded."""
        h, i = self.hidden, self.intermediate
        first = self.channels * self.tubelet * self.patch**2 * h + h
        return first + self.layers * (4 * h * h + 4 * h + 2 * h * i + i + h + 4 * h) + 2 * h

    def video_bytes(self, frames: int) -> int:
        """Bytes of what it computes of a video."""
        patches = -(-frames // self.tubelet) * (self.crop // self.patch) ** 2
        return 4 * patches * (7 * self.hidden + 2 * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights."""
        return 4 * self.parameters


def parse_video_encoder(config: Mapping[str, Any]) -> VideoEncoderShape | None:
    """The encoder that a config.json describes; None for another model, or a config that is not understood."""
    if config.get("model_type") != MODEL_TYPE:
        return None
    try:
        hidden = int(config.get("hidden_size", 1024))
        return VideoEncoderShape(
            hidden=hidden,
            intermediate=int(hidden * float(config.get("mlp_ratio", 4))),
            layers=int(config.get("num_hidden_layers", 24)),
            patch=int(config.get("patch_size", 16)),
            tubelet=int(config.get("tubelet_size", 2)),
            crop=int(config.get("crop_size", 256)),
            channels=int(config.get("in_chans", 3)),
        )
    except (TypeError, ValueError):
        return None
