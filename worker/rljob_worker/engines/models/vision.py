"""Models that see: a vision tower makes features of pictures, the embeddings of the tokens that stand for them.

The model's own forward looks for those tokens by their ids, among all that it is given: one that a policy draws for
itself would be taken for a picture. Here a pack says which tokens are features, so that only those of prompts are. They
may be features of any of its pictures: one that several prompts show goes through the tower once.

The tower sees pictures, not rows: its attention is transformers' own, over the patches of each picture, in both
directions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from rljob_worker.batch import Indices
from rljob_worker.engines.parallel.split import TOWERS
from rljob_worker.engines.prompt_pictures import Picture


@dataclass(frozen=True, slots=True)
class PictureTensors:
    """The pictures of one pack, and which of this rank's tokens show them."""

    pixel_values: torch.Tensor
    """[patches, channels x frames x height x width] of all pictures, one after another."""
    grids: torch.Tensor
    """int64 [pictures, 3]: patches by frames, rows and columns."""
    places: torch.Tensor
    """int64 [shown]: tokens whose embeddings are features."""
    features: torch.Tensor
    """int64 [shown]: which features these are."""


@dataclass
class DecoderOutput(BaseModelOutputWithPast):  # type: ignore[misc]
    """What a causal LM asks of what is below its last layer."""

    rope_deltas: torch.Tensor | None = None
    router_logits: tuple[torch.Tensor, ...] | None = None


def picture_tensors(pictures: Sequence[Picture], features: Indices) -> PictureTensors:
    """features: int64 [own tokens], as in `PackedRows`; pads are 0. In host memory."""
    places = np.flatnonzero(features)
    return PictureTensors(
        torch.from_numpy(np.concatenate([picture.pixel_values for picture in pictures])),
        torch.from_numpy(np.stack([picture.grid for picture in pictures])),
        torch.from_numpy(places),
        torch.from_numpy(features[places] - 1),
    )


def fuse_tower(model: torch.nn.Module) -> None:
    """A model that sees is called with `pictures`, a `PictureTensors`, in place of pixels; without them its rows are
    text. position_ids are [1, tokens], or [4, 1, tokens]: see `packing`."""
    base = model.base_model
    base.runs_tower = False
    base.forward = partial(_forward, base)
    # looked up by every layer of a tower; equal to transformers' own in float32 and less
    sys.modules[type(base.visual).__module__].apply_rotary_pos_emb_vision = _rotated  # type: ignore[attr-defined]


def _rotated(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [patches, heads, head_dim] turned by their places. Transformers does so in float32 whatever it
    is given; here a float64 tower stays in float64, so that its sums do not depend on how rows are grouped."""
    wide = torch.promote_types(query.dtype, torch.float32)
    cos, sin = (item.unsqueeze(-2).to(wide) for item in (cos, sin))

    def turned(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.to(wide).chunk(2, dim=-1)
        result = torch.cat([first, second], -1) * cos + torch.cat([-second, first], -1) * sin
        return result.to(heads.dtype)

    return turned(query), turned(key)


def tower_of(model: torch.nn.Module) -> torch.nn.Module | None:
    """The vision tower; None of a model that does not see."""
    return next((module for name, module in model.named_modules() if name.rpartition(".")[2] in TOWERS), None)


def decoder_of(model: torch.nn.Module) -> torch.nn.Module:
    """What has the decoder layers: of a model that sees the part that does not."""
    return next((item for name, item in model.named_modules() if name.rpartition(".")[2] == "language_model"), model)


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The ModuleList with the most parameters, which is not the vision tower's; an empty one where there is none."""
    lists = [
        module for module in decoder_of(model).modules() if isinstance(module, torch.nn.ModuleList) and len(module)
    ]
    return max(lists, key=lambda item: sum(p.numel() for p in item.parameters()), default=torch.nn.ModuleList())


def is_of_tower(name: str) -> bool:
    """Whether a parameter of this name is the tower's."""
    return not TOWERS.isdisjoint(name.split("."))


def run_tower_always(model: torch.nn.Module) -> None:
    """From here on every forward pass runs the tower, on a picture that nobody shows where there is no other: ranks
    that share its weights meet in every pass, and its gradients are 0 and not missing."""
    for module in model.modules():
        if hasattr(module, "runs_tower"):
            module.runs_tower = True


def _forward(
    base: torch.nn.Module,
    *,
    input_ids: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    pictures: PictureTensors | None = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = None,
    attention_layout: Any = None,
    **_: Any,
) -> DecoderOutput:
    assert inputs_embeds is None, "a model that sees has no pipeline stages"
    embeddings = base.get_input_embeddings()(input_ids)
    deep: dict[str, Any] = {}
    if pictures is not None:
        embeddings, deep = _with_features(base, embeddings, pictures)
    elif base.runs_tower:
        features = _features(base, *_nobodys_picture(base, embeddings.device))
        embeddings = embeddings + sum(item.sum() * 0.0 for item in features).to(embeddings.dtype)
    output = base.language_model(
        inputs_embeds=embeddings,
        position_ids=position_ids,
        past_key_values=past_key_values,
        use_cache=use_cache,
        attention_layout=attention_layout,
        **deep,
    )
    return DecoderOutput(last_hidden_state=output.last_hidden_state, past_key_values=output.past_key_values)


def _with_features(
    base: torch.nn.Module, embeddings: torch.Tensor, pictures: PictureTensors
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Embeddings [1, tokens, hidden] with features in their places, and what deeper layers add there, if any."""
    features, *deeper = (
        item.index_select(0, pictures.features).to(embeddings.dtype)
        for item in _features(base, pictures.pixel_values, pictures.grids)
    )
    # a rank whose tokens show nothing needs the tower's gradients as well: of nothing they are 0
    embeddings = embeddings.index_copy(1, pictures.places, features[None])
    if not deeper:
        return embeddings, {}
    shown = torch.zeros(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
    shown[0, pictures.places] = True
    return embeddings, {"visual_pos_masks": shown, "deepstack_visual_embeds": deeper}


def _features(base: torch.nn.Module, pixel_values: torch.Tensor, grids: torch.Tensor) -> list[torch.Tensor]:
    """What the first layer gets of each picture, and what deeper ones add: [features, hidden] each."""
    tower = base.visual
    is_trained = any(parameter.requires_grad for parameter in tower.parameters())
    with torch.set_grad_enabled(is_trained and torch.is_grad_enabled()):
        output = tower(pixel_values, grid_thw=grids.to(pixel_values.device), return_dict=True)
    return [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]


def _nobodys_picture(base: torch.nn.Module, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest one that there is: one feature."""
    config = base.config.vision_config
    merge = int(config.spatial_merge_size)
    width = int(config.in_channels * config.temporal_patch_size * config.patch_size**2)
    return torch.zeros(merge * merge, width, device=device), torch.tensor([[1, merge, merge]])


def rope_positions(model: torch.nn.Module, tokens: Indices, shown: Sequence[Picture]) -> Indices:
    """Frame, row and column of each token of a prompt, int64 [tokens, 3], from the grids of what it shows, in the order
    of their tokens.

    As `get_rope_index` has them, but for what comes behind a video of Qwen2.5-VL: it goes on behind the largest
    position of the video, its frames included, as the model was published, and as vLLM has it; transformers 5 leaves
    the frames out."""
    config, base = model.config, model.base_model
    kinds = np.where(tokens == config.image_token_id, 1, np.where(tokens == config.video_token_id, 2, 0))
    grids = {
        name: torch.from_numpy(np.stack(items))
        for name, is_video in (("image_grid_thw", False), ("video_grid_thw", True))
        if (items := [item.grid for item in shown if item.is_video == is_video])
    }
    seconds = [item.seconds for item in shown if item.is_video]
    positions, _ = base.get_rope_index(
        torch.from_numpy(tokens.astype(np.int64))[None],
        mm_token_type_ids=torch.from_numpy(kinds)[None],
        **grids,
        **({"second_per_grid_ts": seconds} if seconds else {}),
    )
    result: Indices = positions[:, 0].T.contiguous().numpy()
    return _behind_videos(result, kinds == 2)


def _behind_videos(positions: Indices, is_video: Indices) -> Indices:
    """Positions [tokens, 3] with what follows tokens of a video moved behind the largest of theirs."""
    edges = np.diff(is_video.astype(np.int8), prepend=0, append=0)
    for start, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        if end < len(positions):
            positions[end:] += positions[start:end].max() + 1 - positions[end].min()
    return positions
