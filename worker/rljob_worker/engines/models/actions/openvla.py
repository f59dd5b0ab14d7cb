"""OpenVLA and OpenVLA-OFT: pictures go through two towers, whose features are embeddings of a Llama.

    picture ─┬─ DINOv2 ─┐
             └─ SigLIP ─┴─ projector ─▶ embeddings in the place of the picture's tokens ─▶ Llama ─▶ action words

Parameters have the names of the published checkpoints, which also hold the last layer of each tower and what is behind
it: nothing is computed with those, and they are not read.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    LlamaModel,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rljob_worker.engines.models.actions.feature_tower import FeatureTower
from rljob_worker.engines.models.actions.openvla_config import OpenVLAConfig, OpenVLAOFTConfig

_BEHIND_TOWERS = (r"^vision_backbone\.\w+\.(norm|attn_pool)\.",)
"""What published files have besides the last layer of each tower, and nothing is computed with."""


class VisionBackbone(torch.nn.Module):  # type: ignore[misc]
    """Both towers: features [pictures, patches, hidden of both] of pixels [pictures, 6, size, size]."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        first, second = config.towers
        self.featurizer = FeatureTower(first, config.image_sizes[0])
        self.fused_featurizer = FeatureTower(second, config.image_sizes[1])

    @property
    def blocks(self) -> list[torch.nn.Module]:
        """The layers of both."""
        return [*self.featurizer.blocks, *self.fused_featurizer.blocks]

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        first, second = pixels.split(3, dim=1)
        return torch.cat([self.featurizer(first), self.fused_featurizer(second)], dim=2)


class Projector(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(features, 4 * features)
        self.fc2 = torch.nn.Linear(4 * features, hidden)
        self.fc3 = torch.nn.Linear(hidden, hidden)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(features)))))


class StateProjector(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, numbers: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(numbers, hidden)
        self.fc2 = torch.nn.Linear(hidden, hidden)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(states)))


class _Language(torch.nn.Module):  # type: ignore[misc]
    """Where the Llama is, by the names of files; a policy adds `lm_head`."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.model = LlamaModel._from_config(config.text_config, attn_implementation=config._attn_implementation)


class OpenVLABackbone(PreTrainedModel):  # type: ignore[misc]
    """What is below the last layer: a critic's backbone, too."""

    config_class: type[OpenVLAConfig] = OpenVLAConfig
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__(config)
        width = config.text_config.hidden_size
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(sum(shape.hidden for shape in config.towers), width)
        if config.state_size:
            self.proprio_projector = StateProjector(config.state_size, width)
        self.language_model = _Language(config)
        self.runs_tower = False
        towers = zip(("featurizer", "fused_featurizer"), config.towers, strict=True)
        last = [rf"^vision_backbone\.{name}\.blocks\.{shape.depth - 1}\." for name, shape in towers]
        self._keys_to_ignore_on_load_unexpected = [*_BEHIND_TOWERS, *last]
        self.post_init()

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.language_model.model.embed_tokens

    def _init_weights(self, module: torch.nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, FeatureTower):
            for parameter in module.parameters(recurse=False):
                torch.nn.init.normal_(parameter, std=std)
        else:  # norms and scales of layers
            for name, parameter in module.named_parameters(recurse=False):
                torch.nn.init.constant_(parameter, 0.0 if name == "bias" else 1.0)

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        pictures: Any = None,
        states: torch.Tensor | None = None,
        action_places: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        attention_layout: Any = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """The last hidden state [1, tokens, hidden] of a pack, or [rows, 1, hidden] of a step of decoding.

        pictures: `PictureTensors`, of pixels [pictures, 6, size, size]. states: [rows, numbers], each in the place of
        its row's state token. action_places: int64, tokens that are placeholders, which have no embedding.
        """
        embeddings = self.get_input_embeddings()(input_ids)
        if pictures is not None:
            features = self._features(pictures.pixel_values).index_select(0, pictures.features)
            embeddings = embeddings.index_copy(1, pictures.places, features[None].to(embeddings.dtype))
        elif self.runs_tower:
            size = self.config.image_sizes[0]
            nothing = self._features(embeddings.new_zeros(1, 6, size, size))
            embeddings = embeddings + nothing.sum().to(embeddings.dtype) * 0.0
        if self.config.state_size:
            embeddings = self._with_states(embeddings, input_ids, states)
        if action_places is not None:
            embeddings = embeddings.index_fill(1, action_places, 0.0)
        return self.language_model.model(
            inputs_embeds=embeddings,
            # rows of other models that see have a position in each of several dimensions, all equal here
            position_ids=position_ids[0] if position_ids.ndim == 3 else position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            attention_layout=attention_layout,
        )

    def forward(self, **inputs: Any) -> BaseModelOutputWithPast:
        return self.hidden_states(**inputs)

    def _features(self, pixels: torch.Tensor) -> torch.Tensor:
        """[patches of all pictures, hidden]"""
        tower = self.vision_backbone
        is_trained = any(parameter.requires_grad for parameter in tower.parameters())
        with torch.set_grad_enabled(is_trained and torch.is_grad_enabled()):
            features = tower(pixels.to(self.projector.fc1.weight.dtype))
        return self.projector(features).flatten(0, 1)

    def _with_states(
        self, embeddings: torch.Tensor, input_ids: torch.Tensor, states: torch.Tensor | None
    ) -> torch.Tensor:
        is_state = input_ids == self.config.state_token_id
        weight = self.proprio_projector.fc1.weight
        values = weight.new_zeros(1, self.config.state_size) if states is None else states.to(weight.dtype)
        projected = self.proprio_projector(values).to(embeddings.dtype)
        row = (is_state.cumsum(1) - 1).clamp(min=0, max=len(projected) - 1)
        return torch.where(is_state[..., None], projected[row], embeddings)


class OpenVLAPolicy(OpenVLABackbone, GenerationMixin):  # type: ignore[misc]
    """The policy: its last layer has a row for each word."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__(config)
        text = config.text_config
        self.language_model.lm_head = torch.nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.language_model.lm_head

    def forward(self, logits_to_keep: torch.Tensor | None = None, **inputs: Any) -> CausalLMOutputWithPast:
        output = self.hidden_states(**inputs)
        hidden = output.last_hidden_state
        if logits_to_keep is not None:
            hidden = hidden[:, logits_to_keep]
        logits = self.get_output_embeddings()(hidden)
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)


class OpenVLAOFTBackbone(OpenVLABackbone):
    """The variant's, whose config says that actions are decided on in one forward pass."""

    config_class = OpenVLAOFTConfig


class OpenVLAOFTPolicy(OpenVLAPolicy):
    """The variant's policy."""

    config_class = OpenVLAOFTConfig


for _config, _backbone, _policy in (
    (OpenVLAConfig, OpenVLABackbone, OpenVLAPolicy),
    (OpenVLAOFTConfig, OpenVLAOFTBackbone, OpenVLAOFTPolicy),
):
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _backbone)
    AutoModelForCausalLM.register(_config, _policy)
