"""Configs of OpenVLA, as published, and of its variant that decides on several actions in one forward pass.

Kim et al., OpenVLA, https://arxiv.org/abs/2406.09246; Kim, Finn and Liang, Fine-Tuning Vision-Language-Action Models
(OpenVLA-OFT), https://arxiv.org/abs/2502.19645.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import LlamaConfig, PretrainedConfig

from rljob_api.memory.fused_towers import TOWERS, TowerShape
from rljob_worker.engines.decision_packing import OneForward


class OpenVLAConfig(PretrainedConfig):  # type: ignore[misc]
    """Action words are the last before those that pad the vocabulary; the last of them is the lowest bin."""

    model_type = "openvla"
    sub_configs = {"text_config": LlamaConfig}

    def __init__(
        self,
        text_config: dict[str, Any] | LlamaConfig | None = None,
        timm_model_ids: Sequence[str] = tuple(TOWERS),
        image_sizes: Sequence[int] = (224, 224),
        vision_towers: Sequence[dict[str, Any]] | None = None,
        pad_to_multiple_of: int = 64,
        n_action_bins: int = 256,
        action_dim: int = 7,
        num_actions_chunk: int = 1,
        norm_stats: dict[str, Any] | None = None,
        state_size: int = 0,
        initializer_range: float = 0.02,
        **more: Any,
    ) -> None:
        """vision_towers: shapes in the place of `timm_model_ids`, by the fields of `TowerShape`. state_size: numbers of
        the state that it reads behind the pictures."""
        text = text_config
        self.text_config: LlamaConfig = (
            text if isinstance(text, LlamaConfig) else LlamaConfig(**{"vocab_size": 32064, **(text or {})})
        )
        self.timm_model_ids, self.image_sizes = list(timm_model_ids), list(image_sizes)
        self.vision_towers = vision_towers
        self.pad_to_multiple_of, self.n_action_bins = pad_to_multiple_of, n_action_bins
        self.action_dim, self.num_actions_chunk = action_dim, num_actions_chunk
        self.norm_stats, self.state_size = norm_stats or {}, state_size
        self.initializer_range = initializer_range
        super().__init__(**{"tie_word_embeddings": False, **more})

    @property
    def action_tokens(self) -> dict[str, Any]:
        """As other models that act have it in config.json."""
        first = self.num_words - self.n_action_bins
        chunk, dimensions = self.num_actions_chunk, self.action_dim
        return {
            "first_word": first, "bins": self.n_action_bins, "chunk": chunk, "dimensions": dimensions,
            "counts_down": True,
        }  # fmt: skip

    @property
    def num_words(self) -> int:
        """Words without those that pad the vocabulary: the first of these is a picture's, the second the state's."""
        return int(self.text_config.vocab_size) - int(self.pad_to_multiple_of)

    @property
    def image_token_id(self) -> int:
        return self.num_words

    @property
    def state_token_id(self) -> int:
        return self.num_words + 1

    @property
    def towers(self) -> tuple[TowerShape, ...]:
        """Raises KeyError for one that nobody knows."""
        if self.vision_towers is not None:
            return tuple(TowerShape(**shape) for shape in self.vision_towers)
        return tuple(TOWERS[name] for name in self.timm_model_ids)

    @property
    def num_patches(self) -> int:
        """Tokens of a picture."""
        return (int(self.image_sizes[0]) // self.towers[0].patch) ** 2


class OpenVLAOFTConfig(OpenVLAConfig):
    """All tokens of a decision in one forward pass. `bidirectional`: "Actions" see all of their row, the prompt is
    causal; "All": so does the prompt, as in models that were trained without a causal mask. suffix_tokens: what stands
    behind the action tokens, such as the end of a sequence."""

    model_type = "openvla_oft"

    def __init__(
        self, bidirectional: str = "Actions", suffix_tokens: Sequence[int] = (), num_actions_chunk: int = 8, **more: Any
    ) -> None:
        self.bidirectional, self.suffix_tokens = bidirectional, list(suffix_tokens)
        super().__init__(num_actions_chunk=num_actions_chunk, **more)

    @property
    def one_forward(self) -> OneForward:
        return OneForward(
            num_tokens=self.num_actions_chunk * self.action_dim,
            suffix=tuple(self.suffix_tokens),
            sees_all=self.bidirectional == "All",
        )
