"""Context parallelism: the tokens of one pack are spread over the ranks of a copy, in attention its heads are instead.

Jacobs et al., DeepSpeed-Ulysses, https://arxiv.org/abs/2309.14509. Two ranks, four heads, a pack of tokens a to f:

    linear layers, norms, the last layer     rank 0: a b c, all heads        rank 1: d e f, all heads
    attention                                rank 0: a to f, heads 0 1       rank 1: a to f, heads 2 3

In attention every rank has whole rows, so that one formula serves all of its forms. Where ranks cannot share the key
heads in whole ones, heads stay and keys go round (see `ring.attention`). Tokens are then dealt out in turn: a c e and
b d f.

What comes out of the last layer is given to all ranks of the copy: each computes the loss of whole rows, and counts the
gradient of its own tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from rljob_api.pipeline.meshes import context_way
from rljob_worker.batch import Indices
from rljob_worker.engines.attention.varlen import AttentionLayout, Formula
from rljob_worker.engines.parallel.exchange import exchange
from rljob_worker.engines.parallel.mesh_ranks import TOKENS

if TYPE_CHECKING:
    from rljob_worker.engines.parallel.mesh import ProcessMesh


@dataclass(frozen=True, slots=True)
class Sharing:
    """The ranks of a copy, by what they share."""

    tokens: dist.ProcessGroup
    """All of them: outside of attention and of tensor_group that are split each has tokens of its own."""
    heads: dist.ProcessGroup | None = None
    """The ranks over which heads are spread in attention, of those that each rank's tensor_group make."""
    ring: dist.ProcessGroup | None = None
    """The ranks whose keys and values go round, in place of that: ring attention."""
    tensor_group: dist.ProcessGroup | None = None
    """The tensor-parallel group (see `tensor`): neighbours, each with heads of its own, and with the tokens of
    all of them where it computes with its part."""

    @property
    def num_ranks(self) -> int:
        return int(self.tokens.size())

    @staticmethod
    def of(mesh: ProcessMesh, key_heads: int) -> Sharing | None:
        """The context-parallel split of a model with `key_heads`. None where a rank has a copy for itself."""
        tokens, context = mesh.group(*TOKENS), mesh.group("cp")
        if tokens is None:
            return None
        by_heads = context_way(key_heads, mesh.mesh) == "Heads"
        heads, ring = (context, None) if by_heads else (None, context)
        return Sharing(tokens, heads, ring, mesh.group("tp"))


@dataclass(frozen=True, slots=True)
class SplitTokens:
    """Which tokens of one pack are this rank's: an equal run of consecutive ones, pads behind the last; in a ring the
    pack is first dealt out to its ranks in turn."""

    sharing: Sharing
    num_tokens: int
    """Tokens of the pack."""

    @property
    def num_own(self) -> int:
        """Tokens of every rank, pads included; at least one, so that every rank has a part in every collective."""
        return max(1, -(-self.num_tokens // self.sharing.num_ranks))

    @property
    def num_pads(self) -> int:
        """Behind the tokens of the pack."""
        return self.num_own * self.sharing.num_ranks - self.num_tokens

    def own(self, tokens: Indices) -> Indices:
        """[num_own, ...] of something that every token of the pack has; pads are 0."""
        return self._run(tokens, self.num_own)

    def of_tensor_group(self, tokens: Indices) -> Indices:
        """The tokens of all ranks of this rank's tensor-parallel group: [num_own * ranks]."""
        group = self.sharing.tensor_group
        return self._run(tokens, self.num_own * (1 if group is None else group.size()))

    def _run(self, tokens: Indices, length: int) -> Indices:
        """The run with this rank's tokens, of consecutive runs of this length."""
        start = self.sharing.tokens.rank() * self.num_own // length * length
        padded = np.concatenate([tokens, np.zeros((self.num_pads, *tokens.shape[1:]), tokens.dtype)])
        dealt = padded.reshape(-1, self._turns, *tokens.shape[1:]).swapaxes(0, 1).reshape(padded.shape)
        return dealt[start : start + length]

    def own_places(self, places: Indices) -> tuple[Indices, Indices, Places]:
        """Which of the positions in the pack are this rank's, what they are counted from its first token, and where all
        of them are."""
        per_turn = (self.num_tokens + self.num_pads) // self._turns
        dealt = places % self._turns * per_turn + places // self._turns
        holder, rank = dealt // self.num_own, self.sharing.tokens.rank()
        mine = np.flatnonzero(holder == rank)
        return mine, dealt[mine] - rank * self.num_own, Places.build(holder, self.sharing.tokens)

    @property
    def _turns(self) -> int:
        """Ranks that tokens are dealt out to in turn; 1: they stay in order."""
        return 1 if self.sharing.ring is None else self.sharing.ring.size()


@dataclass(frozen=True, slots=True)
class Places:
    """Which rank has what of a list that is spread over a copy, each its part in the list's order."""

    group: dist.ProcessGroup
    mine: torch.Tensor
    """[own] what of the list is this rank's."""
    most: int
    """The most elements of the list that any rank has."""
    slots: torch.Tensor
    """[places] where each is among what all ranks have, `most` apiece."""

    @staticmethod
    def build(holder: Indices, group: dist.ProcessGroup) -> Places:
        """holder: [places] the rank that has each."""
        counts = np.bincount(holder, minlength=group.size())
        most = int(counts.max(initial=1))
        slots = np.empty(len(holder), np.int64)
        by_rank = np.argsort(holder, kind="stable")  # each rank's part in the list's order
        slots[by_rank] = np.concatenate([rank * most + np.arange(count) for rank, count in enumerate(counts)])
        mine = np.flatnonzero(holder == group.rank())
        return Places(group, torch.from_numpy(mine), most, torch.from_numpy(slots))

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """[places] on every rank, from what each has; a gradient goes back to the rank that has the place."""
        apply: torch.Tensor = _Whole.apply(own, self)
        return apply


class _Whole(torch.autograd.Function):  # type: ignore[misc]
    """Every rank of the copy computes the same loss of what this gives, so that the gradient at a place is whole on its
    rank and is not added up over them."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, places: Places) -> torch.Tensor:
        ctx.mine = places.mine
        sent = torch.cat([own, own.new_zeros(places.most - len(own))])
        received = own.new_empty(places.most * places.group.size())
        dist.all_gather_single(received, sent, group=places.group)
        return received.index_select(0, places.slots)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return gradient.index_select(0, ctx.mine), None


@dataclass(frozen=True, slots=True)
class SplitHeads:
    """An attention layout for tokens that are spread over a group: each rank computes some heads of whole rows."""

    whole: AttentionLayout
    """Layout of the whole pack, pads included."""
    group: dist.ProcessGroup

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, formula: Formula) -> torch.Tensor:
        size = self.group.size()
        parts = [heads[0].unflatten(0, (size, -1)) for heads in (query, key, value)]  # [ranks, heads, own, head_dim]
        met = exchange(torch.cat(parts, dim=1), self.group).transpose(0, 1).flatten(1, 2)  # [heads, tokens, head_dim]
        q, k, v = (heads[None] for heads in met.split([part.shape[1] for part in parts]))
        out = self.whole.attend(q, k, v, formula)
        returned = exchange(out[0].unflatten(0, (size, -1)), self.group)  # [ranks, own, heads, head_dim]
        return returned.transpose(0, 1).flatten(1, 2)[None]
