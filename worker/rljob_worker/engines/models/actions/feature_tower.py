"""A vision transformer whose parameters have the names that timm gives them, as far as OpenVLA computes one: up to the
layer before the last, without what is behind it.

DINOv2 with registers: Darcet et al., https://arxiv.org/abs/2309.16588. SigLIP: Zhai et al.,
https://arxiv.org/abs/2303.15343.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rljob_api.memory.fused_towers import TowerShape

EPSILON = 1e-6


class TowerAttention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = torch.nn.Linear(shape.hidden, 3 * shape.hidden)
        self.proj = torch.nn.Linear(shape.hidden, shape.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        pictures, tokens, width = hidden.shape
        parts = self.qkv(hidden).view(pictures, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        result = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.proj(result.transpose(1, 2).reshape(pictures, tokens, width))


class LayerScale(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = torch.nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.scale_factor


class FeedForward(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(shape.hidden, shape.intermediate)
        self.fc2 = torch.nn.Linear(shape.intermediate, shape.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(hidden)))


class TowerLayer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.attn = TowerAttention(shape)
        self.norm2 = torch.nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.mlp = FeedForward(shape)
        if shape.layer_scale:
            self.ls1, self.ls2 = LayerScale(shape.hidden), LayerScale(shape.hidden)
        else:
            self.ls1 = self.ls2 = torch.nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.ls1(self.attn(self.norm1(hidden)))
        return hidden + self.ls2(self.mlp(self.norm2(hidden)))


class PatchEmbedding(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.proj = torch.nn.Conv2d(3, shape.hidden, shape.patch, stride=shape.patch)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


class FeatureTower(torch.nn.Module):  # type: ignore[misc]
    """Features [pictures, patches, hidden] of pixels [pictures, 3, size, size]."""

    def __init__(self, shape: TowerShape, size: int) -> None:
        super().__init__()
        self.num_prefix = shape.registers + 1 if shape.registers else 0
        if self.num_prefix:
            self.cls_token = torch.nn.Parameter(torch.zeros(1, 1, shape.hidden))
            self.reg_token = torch.nn.Parameter(torch.zeros(1, shape.registers, shape.hidden))
        self.pos_embed = torch.nn.Parameter(torch.zeros(1, (size // shape.patch) ** 2, shape.hidden))
        self.patch_embed = PatchEmbedding(shape)
        self.blocks = torch.nn.ModuleList(TowerLayer(shape) for _ in range(shape.depth - 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = self.patch_embed(pixels) + self.pos_embed
        if self.num_prefix:
            prefix = torch.cat([self.cls_token, self.reg_token], 1).expand(len(hidden), -1, -1)
            hidden = torch.cat([prefix, hidden], 1)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden[:, self.num_prefix :]
