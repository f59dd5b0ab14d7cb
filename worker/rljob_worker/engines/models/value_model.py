"""A critic: a backbone with one number per token."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

VALUE_HEAD = "value_head.safetensors"
"""The head's file, beside those of the backbone."""


class ValueModel(torch.nn.Module):
    """A backbone with one number per token. A new head is zero: the first values are 0, and the backbone stays the
    policy's."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        hidden = backbone.config.get_text_config().hidden_size
        self.value_head = torch.nn.Linear(hidden, 1, bias=True, dtype=backbone.dtype, device=backbone.device)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)

    def forward(self, positions_to_keep: torch.Tensor, **inputs: object) -> torch.Tensor:
        """Values [tokens] at the given positions of one pack."""
        hidden = self.backbone(**inputs).last_hidden_state[0]
        return self.value_head(hidden.index_select(0, positions_to_keep)).squeeze(-1)
