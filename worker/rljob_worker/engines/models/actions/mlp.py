"""A policy without words or pictures: layers between what a simulator measures and the bins of its actions.

    state [numbers] ─▶ layers ─▶ [action tokens, hidden] ─▶ [action tokens, bins]

Every action token has a distribution of its own over the bins, which depends on nothing but the state.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from rljob_worker.engines.decision_packing import OneForward


class MLPPolicyConfig(PretrainedConfig):  # type: ignore[misc]
    """`action_tokens` has bins, chunk (actions of a decision) and dimensions (of an action)."""

    model_type = "rljob_mlp_policy"
    num_attention_heads = 1
    """There is no attention to split among ranks."""

    def __init__(
        self,
        state_size: int = 4,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        action_tokens: dict[str, Any] | None = None,
        norm_stats: dict[str, Any] | None = None,
        initializer_range: float = 0.1,
        **more: Any,
    ) -> None:
        """norm_stats: by data set, as in `embodied.actions`."""
        self.state_size, self.hidden_size, self.num_hidden_layers = state_size, hidden_size, num_hidden_layers
        self.action_tokens = {"first_word": 0, "bins": 256, "chunk": 1, "dimensions": 2} | (action_tokens or {})
        self.norm_stats = norm_stats or {}
        self.initializer_range = initializer_range
        more.pop("vocab_size", None)
        super().__init__(**{"tie_word_embeddings": False, **more})
        self.vocab_size = int(self.action_tokens["bins"]) + 1  # and the prompt, which is one word

    @property
    def one_forward(self) -> OneForward:
        """All tokens of a decision at once, without the prompt."""
        return OneForward(self.num_action_tokens, placeholder=self.vocab_size - 1, reads_prompt=False)

    @property
    def num_action_tokens(self) -> int:
        return int(self.action_tokens["chunk"]) * int(self.action_tokens["dimensions"])


class _Pretrained(PreTrainedModel):  # type: ignore[misc]
    config_class = MLPPolicyConfig
    base_model_prefix = "model"
    _supports_sdpa = _supports_attention_backend = True

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=self.config.initializer_range)
            torch.nn.init.zeros_(module.bias)


class MLPPolicyTrunk(_Pretrained):
    """The layers below the last: a critic's backbone, too."""

    def __init__(self, config: MLPPolicyConfig) -> None:
        super().__init__(config)
        width, sizes = config.hidden_size, [config.state_size] + [config.hidden_size] * config.num_hidden_layers
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in zip(sizes, sizes[1:], strict=False))
        self.tokens = torch.nn.Linear(sizes[-1], config.num_action_tokens * width)
        self.post_init()

    def forward(self, states: torch.Tensor | None = None, **_: Any) -> BaseModelOutput:
        """states: [rows, numbers]; None: of nobody. The hidden state is [1, rows x action tokens, hidden]."""
        weight = self.tokens.weight
        hidden = weight.new_zeros(1, self.config.state_size) if states is None else states.to(weight.dtype)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        hidden = torch.tanh(self.tokens(hidden))
        return BaseModelOutput(last_hidden_state=hidden.view(1, -1, self.config.hidden_size))


class MLPPolicy(_Pretrained, GenerationMixin):  # type: ignore[misc]
    """The policy; its last layer has a row for each bin, and one for the word of the prompt, which is never drawn."""

    def __init__(self, config: MLPPolicyConfig) -> None:
        super().__init__(config)
        self.model = MLPPolicyTrunk(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.lm_head

    def forward(self, **inputs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(**inputs).last_hidden_state))


AutoConfig.register(MLPPolicyConfig.model_type, MLPPolicyConfig)
AutoModel.register(MLPPolicyConfig, MLPPolicyTrunk)
AutoModelForCausalLM.register(MLPPolicyConfig, MLPPolicy)
