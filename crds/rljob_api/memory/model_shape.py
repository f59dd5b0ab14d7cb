"""`ModelShape`: how large a model is, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_api.memory.fused_towers import FUSED_MODELS, FusedTowers, fused_decoder, parse_fused_towers
from rljob_api.memory.video_encoder import VideoEncoderShape
from rljob_api.memory.vision_shape import VisionShape, decoder_config, parse_vision_shape

Tower = VisionShape | FusedTowers
"""What makes features of pictures."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """What the models of one architecture have in common."""

    norms: int
    """Norms of the hidden state in a layer."""
    norm_bias: bool = False
    norms_behind: int = 0
    """Norms in a layer of what attention or the MLP made: no matrix reads these. Such a family multiplies what is
    normed with the weight in float32."""
    query_key_norms: bool = False
    projections: int = 3
    """Matrices of the MLP: 3 with a gate, 2 without."""
    query_bias: bool = False
    """Whether the projections of queries, keys and values have a bias."""
    output_bias: bool = False
    """Whether the projection of attention's output has a bias."""
    mlp_bias: bool = False
    tied: bool = False
    """Whether the last layer is the embedding, where the config does not say."""
    last_bias: bool = False
    bounded: bool = False
    """Whether scores of attention are bounded, where the config does not say."""
    fused: bool = False
    """Queries, keys and values are one matrix."""
    megatron: bool = False
    """Whether Megatron can train it."""
    sliced: bool = True
    """Whether ranks that generate take slices of its tensors, which `weight_slices` knows by name."""


ACTION_MODELS = (*FUSED_MODELS, "rljob_mlp_policy")
"""Models that do nothing but act, by `model_type`. The memory of MLP policies is not planned: they are small."""

FAMILIES: Mapping[str, ModelFamily] = {
    "gemma2": ModelFamily(norms=4, norms_behind=2, tied=True, bounded=True),
    "gemma3_text": ModelFamily(norms=4, norms_behind=2, query_key_norms=True, tied=True),
    "gpt2": ModelFamily(
        norms=2,
        norm_bias=True,
        projections=2,
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
        fused=True,
        sliced=False,
    ),
    "llama": ModelFamily(norms=2, megatron=True),
    "mistral": ModelFamily(norms=2),
    "phi": ModelFamily(
        norms=1, norm_bias=True, projections=2, query_bias=True, output_bias=True, mlp_bias=True, last_bias=True
    ),
    "phi3": ModelFamily(norms=2, fused=True),
    "qwen2": ModelFamily(norms=2, query_bias=True, megatron=True),
    "qwen3": ModelFamily(norms=2, query_key_norms=True, megatron=True),
    "qwen3_moe": ModelFamily(norms=2, query_key_norms=True, megatron=True),
}
"""By the `model_type` of the config."""


@dataclass(frozen=True, slots=True)
class Experts:
    """What takes the place of a layer's MLP."""

    count: int
    chosen: int
    """Experts that compute a token."""
    width: int
    """The intermediate size of one."""
    dense: tuple[int, ...] = ()
    """Layers that have an MLP all the same, by number."""

    @property
    def dense_layers(self) -> int:
        return len(self.dense)

    def of_layers(self, layers: range) -> Experts:
        """The experts of a model that has only some of the layers."""
        return replace(self, dense=tuple(layer - layers.start for layer in self.dense if layer in layers))

    def route_bytes(self, layers: int) -> int:
        """Bytes that recording the chosen experts of one token takes, in a model with `layers` layers."""
        return (layers - self.dense_layers) * self.chosen * (1 if self.count <= 256 else 2)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of equal layers, of which some may have one MLP where the others have experts."""

    family: ModelFamily
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    tied: bool
    positions: int = 0
    """Learned positions."""
    max_positions: int | None = None
    """Tokens that a row may have."""
    experts: Experts | None = None
    vision: Tower | None = None
    """The tower of a model that sees, whose parameters are not among the decoder's."""
    videos: VideoEncoderShape | None = None
    """What encodes videos of episodes in the workers that generate with it; no part of the model."""
    bounded: bool = False
    """Whether attention bounds its scores, so that they are made: kernels that keep none do not bound any."""
    begins: bool = True
    """Whether the embedding is here, as it is on the first of pipeline stages."""
    ends: bool = True
    """Whether what comes behind the layers is here, as it is on the last."""
    keeps_keys: bool = True
    """Whether decoding keeps keys and values of earlier tokens: not where one forward pass computes a response."""
    has_words: bool = True
    """Whether there is a last layer, which makes logits of hidden states. A critic has none."""

    @property
    def is_possible(self) -> bool:
        """Whether there can be a model of these sizes."""
        sizes = (
            self.vocabulary,
            self.hidden,
            self.intermediate,
            self.layers,
            self.heads,
            self.key_heads,
            self.head_dim,
        )
        routed = self.experts is None or 0 < self.experts.chosen <= self.experts.count and self.experts.width > 0
        return min(sizes) > 0 and routed

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.key_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of a last layer that is not tied to it."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one layer; of one with experts, where there are any."""
        return self._attention_and_norms + (self._mlp if self.experts is None else self._routed)

    @property
    def largest_tensor(self) -> int:
        """Parameters of the largest one, as it is in memory: all experts of a layer are two tensors."""
        gates = self.family.projections - 1
        experts = 0 if self.experts is None else self.experts.count * gates * self.hidden * self.experts.width
        is_here = self.begins or (self.ends and self.has_words)
        return max(self.embedding * is_here, self._largest_of_layer(self.intermediate), experts)

    def largest_sent(self, count: int) -> list[int]:
        """Parameters of the `count` largest tensors as checkpoints name them, experts one by one; descending."""
        words = [self.embedding] * (1 if self.tied else 2)
        width = self.intermediate if self.experts is None or self.experts.dense else self.experts.width
        return sorted([*words, *[self._largest_of_layer(width)] * count], reverse=True)[:count]

    def _largest_of_layer(self, width: int) -> int:
        """Parameters of the largest matrix of a layer's attention and of an MLP of this width."""
        fused = self.family.fused
        attention = self.hidden * (self.query_width + (2 * self.key_width if fused else 0))
        return max(attention, self.hidden * width * (self.family.projections - 1 if fused else 1))

    @property
    def num_tensors(self) -> int:
        """Tensors of the layers as checkpoints name them, experts one by one; without biases."""
        family = self.family
        attention = (2 if family.fused else 4) + 2 * family.query_key_norms + family.norms
        mlp = 2 if family.fused else family.projections
        if self.experts is None:
            return self.layers * (attention + mlp)
        dense, routed = self.experts.dense_layers, self.experts.count * family.projections + 1
        return self.layers * attention + dense * mlp + (self.layers - dense) * routed

    @property
    def _attention_and_norms(self) -> int:
        family, hidden = self.family, self.hidden
        wide = self.query_width + 2 * self.key_width
        attention = hidden * wide + family.query_bias * wide + self.query_width * hidden + family.output_bias * hidden
        return attention + family.norms * self._norm + family.query_key_norms * 2 * self.head_dim

    @property
    def _mlp(self) -> int:
        family, hidden = self.family, self.hidden
        weight_elements = family.projections * hidden * self.intermediate
        return weight_elements + family.mlp_bias * ((family.projections - 1) * self.intermediate + hidden)

    @property
    def _routed(self) -> int:
        """Experts and the router that chooses among them."""
        assert self.experts is not None
        return self.layer_experts + self.experts.count * self.hidden

    @property
    def layer_experts(self) -> int:
        """Parameters of the experts of a layer that has some."""
        width = 0 if self.experts is None else self.experts.count * self.experts.width
        return self.family.projections * self.hidden * width

    @property
    def all_experts(self) -> int:
        """Parameters of the experts of all layers."""
        return 0 if self.experts is None else (self.layers - self.experts.dense_layers) * self.layer_experts

    @property
    def rest(self) -> int:
        """Parameters besides the layers: embeddings, the last norm, the last layer. One that is the embedding is
        another copy of it where that is on another stage."""
        first = self.embedding + self.positions * self.hidden
        words = 0 if self.tied and self.begins else self.embedding
        last = self._norm + (words + self.family.last_bias * self.vocabulary) * self.has_words
        return first * self.begins + last * self.ends

    def split(self, ranks: int) -> ModelShape:
        """What each of some ranks computes with that split the matrices of the layers; the rest each of them has."""
        return replace(
            self,
            heads=self.heads // ranks,
            key_heads=self.key_heads // ranks,
            intermediate=self.intermediate // ranks,
        )

    def stage(self, index: int, count: int) -> ModelShape:
        """What one of some pipeline stages has."""
        layers = pipeline_layers(index, count, self.layers)
        experts = None if self.experts is None else self.experts.of_layers(layers)
        return replace(self, layers=len(layers), experts=experts, begins=index == 0, ends=index == count - 1)

    def operations(self, attended: float, *, predicts: bool) -> float:
        """Floating-point operations of a forward pass of one token that attends to `attended` tokens: two per parameter
        of the matrices that it meets, and four per width of queries and token of attention. predicts: whether the last
        layer computes logits."""
        per_layer = 4 * self.query_width * attended
        experts = self.experts
        others = 0.0 if experts is None else self.all_experts * (1 - experts.chosen / experts.count)
        words = self.embedding if predicts and self.ends else 0
        return 2 * (self.parameters - self.rest - others + words) + self.layers * per_layer

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter of this rank beside every linear layer: rank x (inputs + outputs) of each."""
        attention = 2 * self.hidden + 2 * self.query_width + 2 * (self.hidden + self.key_width)
        return self.layers * rank * (attention + self.family.projections * (self.hidden + self.intermediate))

    @property
    def parameters(self) -> int:
        """Parameters of a policy; one that has two names counts once."""
        dense = 0 if self.experts is None else self.experts.dense_layers
        return (self.layers - dense) * self.layer + dense * (self._attention_and_norms + self._mlp) + self.rest

    @property
    def _norm(self) -> int:
        return self.hidden * (1 + self.family.norm_bias)


def pipeline_layers(pipeline_stage: int, num_pipeline_stages: int, num_layers: int) -> range:
    """Layers of a pipeline stage: stages have equally many; where that does not go, the first ones have one more: the
    last one has the last layer."""
    length, left = divmod(num_layers, num_pipeline_stages)
    start = pipeline_stage * length + min(pipeline_stage, left)
    return range(start, start + length + (pipeline_stage < left))


def parse_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a config.json of transformers describes; None for an architecture or config that is not known."""
    is_fused = config.get("model_type") in FUSED_MODELS
    decoder = fused_decoder(config) if is_fused else decoder_config(config)
    family = FAMILIES.get(str(decoder.get("model_type")))
    try:
        if family is None or "n_embd" in config:
            return None if family is None else _gpt2(family, config)
        vision = parse_fused_towers(config) or parse_vision_shape(config)
        keeps_keys = config.get("model_type") != "openvla_oft"
        shape = replace(_llama_like(family, decoder), vision=vision, keeps_keys=keeps_keys)
        return shape if shape.is_possible else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _llama_like(family: ModelFamily, config: Mapping[str, Any]) -> ModelShape:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelShape(
        family=_with_biases(family, config),
        vocabulary=int(config["vocab_size"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        max_positions=int(config["max_position_embeddings"]) if config.get("max_position_embeddings") else None,
        experts=_experts(config) if config["model_type"] == "qwen3_moe" else None,
        bounded=bool(config.get("attn_logit_softcapping", family.bounded)),
    )


def _experts(config: Mapping[str, Any]) -> Experts:
    alone, every = set(config.get("mlp_only_layers") or ()), int(config.get("decoder_sparse_step") or 1)
    dense = [layer for layer in range(int(config["num_hidden_layers"])) if layer in alone or (layer + 1) % every]
    return Experts(
        count=int(config.get("num_experts") or config["num_local_experts"]),  # as published, and as transformers writes
        chosen=int(config["num_experts_per_tok"]),
        width=int(config["moe_intermediate_size"]),
        dense=tuple(dense),
    )


def _with_biases(family: ModelFamily, config: Mapping[str, Any]) -> ModelFamily:
    """Where an architecture leaves its biases to the config."""
    attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    return replace(
        family,
        query_bias=family.query_bias or attention,
        output_bias=family.output_bias or attention,
        mlp_bias=family.mlp_bias or mlp,
    )


def _gpt2(family: ModelFamily, config: Mapping[str, Any]) -> ModelShape:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    return ModelShape(
        family=family,
        vocabulary=int(config["vocab_size"]),
        hidden=hidden,
        intermediate=int(config.get("n_inner") or 4 * hidden),
        layers=int(config["n_layer"]),
        heads=heads,
        key_heads=heads,
        head_dim=hidden // heads,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        positions=int(config["n_positions"]),
        max_positions=int(config["n_positions"]),
    )


Shapes = Mapping[str, ModelShape]
"""By the path of the model."""
