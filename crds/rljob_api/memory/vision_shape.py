"""`VisionShape`: how large the vision tower of a model is, and what pictures take in it.

With N patches of a micro-batch, each of p numbers, hidden size h, intermediate size i, D blocks, c bytes of a computed
number and T = N / merge² tokens of width o:

    kept         while the decoder computes: patches, N p 4, as they come from the processor, in float32, and
                 (1 + levels) T o c that the decoder reads as tokens, and adds in its first layers
    at work      besides, until the decoder begins: N p c, the patches as the tower reads them, and a block, N c (7 h +
                 2 i): the hidden state and its norm, queries, keys, values, attention's output and the sum; of the MLP
                 what its first matrices make and their product
    trained      kept besides: N p c, where that is not float32; 4 h N c of the last layer; and of each block N c (11 h
                 + 2 i): what norms read and what is read of them, queries and keys before and behind their rotation,
                 values, attention's output and that as its projection reads it; 4 i with a gate; 15 h where norms are
                 computed in float32 beside bf16; h alone of blocks that are computed again
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DECODERS: Mapping[str, str] = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
"""The `model_type` of the decoder of a model that sees, by its own."""


@dataclass(frozen=True, slots=True)
class VisionShape:
    """A tower of equal blocks, and what merges patches to tokens of the decoder."""

    hidden: int
    intermediate: int
    depth: int
    output: int
    """Width of a token that the decoder reads."""
    patch_numbers: int
    """Numbers of a patch: channels x frames x pixels."""
    merge: int
    """Patches of a side of what a token stands for."""
    positions: int = 0
    """Learned positions."""
    levels: int = 0
    """Blocks whose output the decoder reads besides that of the last."""
    gated: bool = True
    """Whether the MLP has a gate and norms have no bias, as in Qwen2.5-VL."""

    @property
    def parameters(self) -> int:
        """Parameters of the tower."""
        return (
            self._first
            + self.depth * self._block
            + self._merger(self.hidden)
            + self.levels * self._merger(self._merged)
        )

    @property
    def _merged(self) -> int:
        return self.merge**2 * self.hidden

    @property
    def _first(self) -> int:
        bias = 0 if self.gated else self.hidden
        return self.patch_numbers * self.hidden + bias + self.positions * self.hidden

    @property
    def _block(self) -> int:
        h, i = self.hidden, self.intermediate
        attention = 4 * h * h + 4 * h
        mlp = 3 * h * i + 2 * i + h if self.gated else 2 * h * i + i + h
        return attention + mlp + 2 * self._norm(h)

    def _norm(self, width: int) -> int:
        return width if self.gated else 2 * width

    def _merger(self, normed: int) -> int:
        """normed: width of what its norm reads: a patch, or all that are merged."""
        wide = self._merged
        return self._norm(normed) + wide * wide + wide + wide * self.output + self.output

    def kept_bytes(self, tokens: int, computed: int, *, trained: bool, recompute: bool = False) -> int:
        """Bytes that the pictures of a micro-batch keep while the decoder computes. tokens: which it reads of them.
        computed: bytes of a number. trained: whether the tower is; recompute: whether its blocks are computed again."""
        patches = tokens * self.merge**2
        kept = patches * self.patch_numbers * 4 + (1 + self.levels) * tokens * self.output * computed
        if not trained:
            return kept
        read = patches * self.patch_numbers * computed if computed < 4 else 0
        block = patches * computed * (self.hidden if recompute else self._kept_elements(computed))
        return kept + read + self.depth * block + 4 * patches * self.hidden * computed

    def working_bytes(self, tokens: int, computed: int, *, again: bool = False) -> int:
        """Bytes beyond these while the tower computes. again: with a block that is computed again on the way back."""
        patches = tokens * self.merge**2
        block = max(7 * self.hidden + 2 * self.intermediate, again * self._kept_elements(computed))
        return patches * computed * (self.patch_numbers + block)

    def _kept_elements(self, computed: int) -> int:
        """What a block keeps of a patch for its backward pass."""
        if not self.gated:
            return 11 * self.hidden + 2 * self.intermediate
        return (15 if computed < 4 else 11) * self.hidden + 4 * self.intermediate

    @property
    def outside_blocks(self) -> int:
        """Parameters before and behind its blocks."""
        return self.parameters - self.depth * self._block


def parse_vision_shape(config: Mapping[str, Any]) -> VisionShape | None:
    """The tower that a config.json of transformers describes; None for a model without one that is known here."""
    model_type = str(config.get("model_type"))
    if model_type not in DECODERS:
        return None
    tower: Mapping[str, Any] = config.get("vision_config") or {}
    gated = model_type == "qwen2_5_vl"
    patch, merge = int(tower.get("patch_size", 14 if gated else 16)), int(tower.get("spatial_merge_size", 2))
    channels = int(tower.get("in_channels", tower.get("in_chans", 3)))
    return VisionShape(
        hidden=int(tower.get("hidden_size", 1280 if gated else 1152)),
        intermediate=int(tower.get("intermediate_size", 3420 if gated else 4304)),
        depth=int(tower.get("depth", 32 if gated else 27)),
        output=int(tower.get("out_hidden_size", 3584)),
        patch_numbers=channels * int(tower.get("temporal_patch_size", 2)) * patch**2,
        merge=merge,
        positions=0 if gated else int(tower.get("num_position_embeddings", 2304)),
        levels=0 if gated else len(tower.get("deepstack_visual_indexes", (8, 16, 24))),
        gated=gated,
    )


def decoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the decoder: of a model that sees that of its `text_config`, or what it has of one itself."""
    decoder = DECODERS.get(str(config.get("model_type")))
    if decoder is None:
        return config
    tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {**config, **(config.get("text_config") or {}), **tied, "model_type": decoder}
