"""`FusedTowers`: how large the two vision towers of OpenVLA are, with their projector, and what pictures take in them.

With N patches of a micro-batch, towers of hidden size h, intermediate size i and D layers, F the sum of both h, c bytes
of a computed number and decoder width o:

    kept         N 3 p² 4 a tower, p pixels of a patch's side, as they come, in float32; N o c that the decoder reads
    at work      N 3 p² c a tower, and the larger of a layer, N c (7 h + 2 i), as of other towers, and the projector:
                 N c (9 F + o), features, what its first matrix makes and its activation, the others. The layer before
                 the last is the last that is computed
    trained      kept besides: N 3 p² c, where that is not float32, N c (9 F + o), and of every layer N c (9 h + 2 i),
                 11 h where it is scaled; h of those that are computed again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FUSED_MODELS = ("openvla", "openvla_oft")
"""By `model_type`."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """A vision transformer as timm names its parts."""

    hidden: int
    depth: int
    heads: int
    intermediate: int
    patch: int = 14
    registers: int = 0
    """Tokens besides those of patches; with them there is a class token, too."""
    layer_scale: bool = False

    def parameters(self, size: int) -> int:
        """Parameters of what is computed, for pictures with `size` pixels on a side."""
        h = self.hidden
        prefix = (self.registers + 1) * h if self.registers else 0
        first = 3 * self.patch**2 * h + h + (size // self.patch) ** 2 * h + prefix
        return first + (self.depth - 1) * self.layer

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        h, i = self.hidden, self.intermediate
        return 4 * h * h + 4 * h + 2 * h * i + i + h + 4 * h + 2 * h * self.layer_scale

    @property
    def kept_elements(self) -> int:
        """What a layer keeps of a patch for its backward pass."""
        return (11 if self.layer_scale else 9) * self.hidden + 2 * self.intermediate


TOWERS: Mapping[str, TowerShape] = {
    "vit_large_patch14_reg4_dinov2.lvd142m": TowerShape(1024, 24, 16, 4096, registers=4, layer_scale=True),
    "vit_so400m_patch14_siglip_224": TowerShape(1152, 27, 16, 4304),
}
"""By what `timm_model_ids` in config.json calls them."""


@dataclass(frozen=True, slots=True)
class FusedTowers:
    """Two towers that see each picture, and what makes tokens of a decoder of their features."""

    towers: tuple[TowerShape, ...]
    sizes: tuple[int, ...]
    """Pixels of a picture's side, for each."""
    output: int
    """Width of a token that the decoder reads."""
    state_size: int = 0
    """Numbers of a state, of models that read one."""
    merge: int = 1
    """Patches of a side of what a token stands for."""

    @property
    def parameters(self) -> int:
        """Parameters of towers and projectors."""
        seen = sum(tower.parameters(size) for tower, size in zip(self.towers, self.sizes, strict=True))
        f, o = self._features, self.output
        state = self.state_size * o + o + o * o + o if self.state_size else 0
        return seen + 4 * f * f + 4 * f + 4 * f * o + o + o * o + o + state

    @property
    def _features(self) -> int:
        return sum(tower.hidden for tower in self.towers)

    def kept_bytes(self, tokens: int, computed: int, *, trained: bool, recompute: bool = False) -> int:
        """As `VisionShape.kept_bytes`."""
        pixels = sum(3 * tower.patch**2 for tower in self.towers)
        kept = tokens * (4 * pixels + computed * self.output)
        if not trained:
            return kept
        read = pixels if computed < 4 else 0
        layers = sum((tower.depth - 1) * (tower.hidden if recompute else tower.kept_elements) for tower in self.towers)
        return kept + tokens * computed * (read + layers + self._projected)

    def working_bytes(self, tokens: int, computed: int, *, again: bool = False) -> int:
        """As `VisionShape.working_bytes`."""
        pixels = sum(3 * tower.patch**2 for tower in self.towers)
        layers = [7 * tower.hidden + 2 * tower.intermediate for tower in self.towers]
        layers += [again * tower.kept_elements for tower in self.towers]
        return tokens * computed * (pixels + max(*layers, self._projected))

    @property
    def _projected(self) -> int:
        """Elements of a token that the projector has and makes, but for what the decoder reads."""
        return 9 * self._features + self.output

    @property
    def outside_blocks(self) -> int:
        """Parameters before, between and behind the layers of its towers."""
        return self.parameters - sum((tower.depth - 1) * tower.layer for tower in self.towers)


def parse_fused_towers(config: Mapping[str, Any]) -> FusedTowers | None:
    """Those that a config.json describes; None for a model without. Raises KeyError and TypeError for others than are
    known."""
    if str(config.get("model_type")) not in FUSED_MODELS:
        return None
    own: Sequence[Mapping[str, Any]] | None = config.get("vision_towers")
    names = config.get("timm_model_ids") or tuple(TOWERS)
    towers = [TOWERS[name] for name in names] if own is None else [TowerShape(**shape) for shape in own]
    sizes = config.get("image_sizes") or [224] * len(towers)
    output = int((config.get("text_config") or {}).get("hidden_size", 4096))
    return FusedTowers(tuple(towers), tuple(map(int, sizes)), output, int(config.get("state_size") or 0))


_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32064,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
"""What the published files leave out of their text_config."""


def fused_decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the Llama below the towers."""
    return {**_LLAMA, **(config.get("text_config") or {}), "model_type": "llama"}
