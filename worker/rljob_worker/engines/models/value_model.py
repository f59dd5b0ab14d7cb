"""A backbone with one number per token: a critic, or a sequence classifier."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rljob_worker.engines.parallel.shards import local_part

VALUE_HEAD = "value_head.safetensors"
"""The file of a critic's head, beside those of the backbone."""

CLASSIFIER_HEAD = "score"
"""What files of `AutoModelForSequenceClassification` call the head, which is among their tensors."""


class ValueModel(torch.nn.Module):  # type: ignore[misc]
    """A backbone with one number per token. A new head is zero: the first values of a critic are 0, and the backbone
    stays the policy's. The number of a classifier is that at the last token of a text."""

    def __init__(self, backbone: PreTrainedModel, *, is_classifier: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.is_classifier = is_classifier
        hidden = backbone.config.get_text_config().hidden_size
        bias = not is_classifier
        self.value_head = torch.nn.Linear(hidden, 1, bias=bias, dtype=backbone.dtype, device=backbone.device)
        clear_head(self)

    @property
    def config(self) -> PretrainedConfig:
        """The config of the backbone."""
        return self.backbone.config

    def forward(self, positions_to_keep: torch.Tensor, **inputs: object) -> torch.Tensor:
        """Values [tokens] at the given positions of one pack."""
        hidden = self.backbone(**inputs).last_hidden_state[0]
        return self.value_head(hidden.index_select(0, positions_to_keep)).squeeze(-1)


def backbone_of(model: PreTrainedModel | ValueModel) -> PreTrainedModel:
    """What has the names that files have: of a critic the model below its head; a policy has them all."""
    return model.backbone if isinstance(model, ValueModel) else model


def clear_head(model: ValueModel) -> None:
    """This rank's part of it."""
    for parameter in model.value_head.parameters():
        torch.nn.init.zeros_(local_part(parameter.detach()))
