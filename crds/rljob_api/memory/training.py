"""Memory of a model that is trained or scored over sharded ranks.

With P parameters over R ranks of a replica, b bytes of a stored number (4; 8 in Float64) and c of a computed one:

    weights      P b / R kept (experts that ranks share over those that split matrices, too), and what is gathered to
                 compute with: nothing on one rank that computes in what it stores; all P c where the model stays whole
                 between micro-batches (on CPUs, up to HELD_BYTES); else the part beside the layers and three units of
                 layers, one at work, one that is fetched, one on its way; of experts a rank's own
    optimizer    2 P b / R: the two means of AdamW; as gradients, of an adapter alone where there is one. In BFloat16 2
                 bytes in place of b; in Int8 1, and 4 more for every block of them
    gradients    P b / R; whole, P b, where they add up before they are reduced (up to HELD_BYTES); else also two units
                 on their way, when what the layers of one kept is gone
    activations  T L a c, with T tokens of a micro-batch, L layers, and a elements that a layer keeps of a token:
                     norms            of each norm's width the result without the weight, and with it where a matrix
                                      reads that; in bf16 also what is normed, in four bytes, and so is the result where
                                      its product is; of adapters not the result, which the weight's gradient needs
                     attention        queries, keys, values and the output, and the output as its projection reads it;
                                      the first four once more for every further row that attends over a shared prompt
                     gated MLP        4 x intermediate: gate, silu(gate), up, and their product
                     MLP              2 x intermediate
                     experts          of each of those that compute the token: it and its output, 2 x hidden, and a
                                      gated MLP, and where ranks share experts once more its output, as it came
                                      back; and of the router 3 x the number of experts
                 (after Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4, for kernels that keep no
                 attention matrix); T L hidden c where the rest is computed again in the backward pass. Where keys and
                 values go round a ring, once for all layers T 2 k (2 c + 3 max(c, 4)), k wide: those of two other
                 ranks, and gradients of three, computed, sent and arriving. What is kept is there of every micro-batch
                 that is on its way through pipeline stages (1F1B): of as many as there are stages on the first of them,
                 of one on the last. Of ranks that split matrices each has a part of the tokens outside of them
    a layer      on its way back, when logits are gone: what it keeps, T a c, where that is computed again; then
                 the larger of gradients in its MLP, T c 2 x intermediate (1 x without a gate), and of its scores. When
                 it comes to those, what it kept behind its attention is gone. And the gradient of the last layer, which
                 waits for that of the embedding
    scores       where attention bounds them: T H K (c + 3 max(c, 4)) with H heads and K tokens of the longest row: the
                 bounded ones, what softmax made of them, and the gradients of both. Of SCORES_ELEMENTS scores at most;
                 where nothing is trained c + 2 max(c, 4) of each. None where keys and values go round a ring, which has
                 a tile of them
    checkpoint   3 P b / R: a copy of weights and optimizer, until it is written; each replica writes a part of it
    host         what is offloaded leaves the accelerator. The optimizer: 2 P b / R, which come back a bucket at a time.
                 Parameters: weights and gradients as well, P b / R each; gradients on their way, and what adds up
                 before it is reduced, stay
    logits       4 x LOGITS_ELEMENTS x max(c, 4) at most, however long the rows, and one more gradient of the last layer
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.memory.model_shape import ModelShape
from rljob_api.v1alpha1 import OffloadSpec

HELD_BYTES = 1 << 30
"""Largest model whose gradients, and on a CPU weights, stay whole on every rank between micro-batches."""
BUCKET_BYTES = 64 << 20
"""Weights that are gathered at once for export and sync; a tensor that is larger goes alone."""
MIN_UNIT_BYTES = 32 << 20
"""Layers are gathered together up to this size."""
STATE_BLOCK, LEAST_STATE_BLOCK = 256, 64
"""Numbers of an optimizer in Int8 that share a scale, at most and at least: of fewer, scales are not small any more."""
_MEAN_STATE_BLOCK = 128
"""Of a model: a third of its weights are matrices whose columns ranks may split, which have the least blocks."""
ATTENDED = 2
"""Tokens that the rows of a micro-batch attend over, at most, per token that may be computed."""
LOGITS_ELEMENTS = 1 << 24
"""Logits in memory at once."""
SCORES_ELEMENTS = 1 << 24
"""Scores of attention in memory at once, where a model bounds them; other kernels keep none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one model lies on its ranks."""

    shape: ModelShape
    ranks: int
    stored: int
    """Bytes of a number as it is kept."""
    computed: int
    """Bytes of a number as it is computed with."""
    on_cpu: bool
    held_bytes: int = HELD_BYTES
    expert_ranks: int = 1
    """Ranks that share the experts of a layer."""
    tensor: int = 1
    """Ranks that split its matrices, which is done to `shape`; experts that are shared lie over them, too. Outside of
    matrices each has a part of the tokens."""
    adapter: int = 0
    """Parameters of an adapter, of at least four bytes each, which is then all that is trained."""
    offload: OffloadSpec = OffloadSpec()
    """What waits in the memory of the host."""
    states: str = "Float32"
    """Number format of the optimizer, as the job has it."""
    ring: bool = False
    """Whether keys and values go round the ranks that share sequences."""
    replicas: int = 1
    """How often so many ranks have it."""

    @property
    def shard(self) -> int:
        """Bytes of this rank's part of the weights, wherever it is."""
        return self._own * self.stored + ceil(self.adapter / self.ranks) * max(self.stored, 4)

    @property
    def _own(self) -> int:
        """Parameters of this rank's shard."""
        experts = self.shape.all_experts if self.expert_ranks > 1 else 0
        return ceil((self.shape.parameters - experts) / self.ranks) + ceil(experts / (self.ranks * self.tensor))

    @property
    def trained(self) -> int:
        """Bytes of what is trained, over all ranks."""
        return self.adapter * max(self.stored, 4) if self.adapter else self.whole

    @property
    def optimizer(self) -> int:
        """Bytes of this rank's part of the two means, wherever they are."""
        if self.states == "Float32":
            return 2 * self.own_trained
        numbers = ceil(self.adapter / self.ranks) if self.adapter else self._own
        return 2 * (2 * numbers if self.states == "BFloat16" else numbers + ceil(4 * numbers / _MEAN_STATE_BLOCK))

    @property
    def kept(self) -> int:
        """Of the weights, bytes that stay where the rank computes."""
        return 0 if self.offload.parameters else self.shard

    @property
    def optimizer_kept(self) -> int:
        """Likewise of the two means."""
        return 0 if self.offload.optimizer else self.optimizer

    @property
    def stepped(self) -> int:
        """Bytes of the two means that come back at once for an optimizer step."""
        if self.offload.parameters or not self.offload.optimizer:
            return 0
        largest = ceil(self.shape.largest_tensor / self.ranks) * self.stored
        bucket = max(BUCKET_BYTES, largest)
        return min(self.optimizer, ceil(self.optimizer * bucket / self.own_trained))

    def host(self, *, trainable: bool) -> int:
        """Bytes that wait in the memory of the host."""
        optimizer = self.optimizer - self.optimizer_kept if trainable else 0
        return self.shard - self.kept + optimizer

    @property
    def host_gradients(self) -> int:
        """Bytes of gradients that go there in an update of it, and are stepped with."""
        return self.own_trained if self.offload.parameters else 0

    @property
    def checkpoint(self) -> int:
        """Bytes of this rank's part of a checkpoint: what is trained, and the two means of it; replicas take turns."""
        return ceil((self.own_trained + self.optimizer) / self.replicas)

    @property
    def own_trained(self) -> int:
        """Bytes of this rank's part of what is trained."""
        return ceil(self.trained / self.ranks) if self.adapter else self._own * self.stored

    @property
    def whole(self) -> int:
        return self.shape.parameters * self.stored

    @property
    def is_whole(self) -> bool:
        """Whether the rank has all weights as they are computed with; an adapter is kept in at least four bytes."""
        stored = max(self.stored, 4) if self.adapter else self.stored
        return self.ranks * self.replicas == 1 and stored == self.computed and not self.offload.parameters

    @property
    def parameters_here(self) -> int:
        """Parameters that the rank has gathered at most: all but other ranks' experts."""
        return self.shape.parameters - self.shape.all_experts * (self.expert_ranks - 1) // self.expert_ranks

    @property
    def is_held(self) -> bool:
        return self.parameters_here * self.stored <= self.held_bytes

    @property
    def unit(self) -> int:
        """Parameters that are gathered together."""
        return self.layers_of_unit * self._layer_here

    @property
    def layers_of_unit(self) -> int:
        """How many layers are gathered together; none where all of the model is."""
        if self.parameters_here * self.stored < MIN_UNIT_BYTES:
            return 0
        return min(ceil(MIN_UNIT_BYTES / (self._layer_here * self.stored)), self.shape.layers)

    @property
    def _layer_here(self) -> int:
        """Parameters of a layer without other ranks' experts."""
        return self.shape.layer - self.shape.layer_experts * (self.expert_ranks - 1) // self.expert_ranks

    @property
    def root(self) -> int:
        """Parameters that stay gathered."""
        return self.shape.rest if self.unit else self.parameters_here

    @property
    def gathered(self) -> int:
        """Bytes of weights to compute with, beside the shard."""
        if self.is_whole:
            return 0
        if self.on_cpu and self.is_held:
            return self.parameters_here * self.computed
        return (self.root + 3 * self.unit) * self.computed


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimizer step of a model takes at most, in bytes."""

    gradients: int
    activations: int
    logits: int
    peak: int
    """Beyond shards, gathered weights and what is kept of the optimizer."""


def update_of(
    layout: Layout,
    tokens: int,
    responses: int,
    micro_batches: int,
    *,
    recompute: bool,
    attended: int = 0,
    longest: int = 0,
    on_their_way: int = 1,
) -> Update:
    """tokens: of a micro-batch, of which `responses` are predicted; none by a critic. attended: of its rows, where that
    is more, as rows that share a prompt each attend over it; longest: of one row. on_their_way: micro-batches between
    their forward and their backward pass, if there are as many."""
    gradients = _Gradients.of(layout, several=micro_batches > 1)
    there = min(on_their_way, micro_batches)
    kept = activations(layout, tokens, recompute=recompute, attended=attended, micro_batches=there)
    logits = logits_bytes(layout, responses, trained=True)
    scores = scores_bytes(layout, max(tokens, attended), longest, trained=True)
    layer = _layer_on_its_way_back(layout, tokens, attended, scores, recompute=recompute)
    last = _last_gradient(layout) * (responses > 0)
    gone = 0 if recompute else gradients.layers_on_their_way * _one_layer(layout, tokens, attended)
    peaks = (
        gradients.before + kept + logits,
        gradients.before + kept + last + layer,
        gradients.before + gradients.on_their_way + kept - min(gone, kept) + last + layer,
        gradients.all + max(_one_layer(layout, tokens) // 2, scores),
        gradients.all + layout.stepped,
    )
    return Update(gradients.all, kept + layer, logits, max(peaks))


@dataclass(frozen=True, slots=True)
class _Gradients:
    """Bytes of those of one model."""

    before: int
    """When the last micro-batch comes back from its loss."""
    on_their_way: int
    """Besides, of two units of layers: one is computed while one is reduced."""
    all: int
    layers_on_their_way: int
    """Of the first of them, which has come back altogether when the second is there."""

    @staticmethod
    def of(layout: Layout, *, several: bool) -> _Gradients:
        per_parameter = layout.trained / layout.shape.parameters
        if layout.is_whole or (layout.is_held and several):
            whole = int(per_parameter * layout.parameters_here)
            return _Gradients(whole * several, 0, whole, 0)
        own = 0 if layout.offload.parameters else layout.own_trained
        on_their_way = int(2 * (layout.unit or layout.root) * per_parameter)
        return _Gradients(own * several, on_their_way, own + on_their_way, layout.layers_of_unit)


def activations(layout: Layout, tokens: int, *, recompute: bool, attended: int = 0, micro_batches: int = 1) -> int:
    """What forward passes keep of so many micro-batches."""
    shape = layout.shape
    own = tokens * shape.hidden // layout.tensor
    kept = shape.layers * (own if recompute else _layer_elements(layout, tokens, attended))
    kept += 4 * own + 2 * shape.head_dim * tokens
    visiting = 2 * shape.key_width * (2 * layout.computed + 3 * max(layout.computed, 4)) if layout.ring else 0
    return micro_batches * kept * layout.computed + visiting * tokens


def _layer_elements(layout: Layout, tokens: int, attended: int = 0) -> int:
    """What one layer keeps."""
    shape, again = layout.shape, max(0, attended - tokens)
    ahead = _attention_elements(layout) * tokens + 2 * (shape.query_width + shape.key_width) * again
    return ahead + _behind_attention_elements(layout) * tokens


def _layer_on_its_way_back(layout: Layout, tokens: int, attended: int, scores: int, *, recompute: bool) -> int:
    """Bytes of the layer that has most, beyond what forward passes keep. scores: bytes of those in one layer."""
    shape = layout.shape
    width = shape.intermediate if shape.experts is None else shape.experts.chosen * shape.experts.width
    in_mlp = (shape.family.projections - 1) * width * tokens * layout.computed
    behind = _behind_attention_elements(layout) * tokens * layout.computed
    again = _one_layer(layout, tokens, attended) if recompute else 0
    return again + max(in_mlp, scores - behind)


def _attention_elements(layout: Layout) -> int:
    """Of one token, with the norm before it."""
    shape, normed = layout.shape, _normed(layout)
    of_heads = normed * (shape.query_width + shape.key_width) if shape.family.query_key_norms else 0
    norm = normed * shape.hidden // layout.tensor + shape.hidden
    return norm + of_heads + 3 * shape.query_width + 2 * shape.key_width


def _behind_attention_elements(layout: Layout) -> int:
    """Of one token, likewise: what the rest of the layer keeps."""
    family, hidden = layout.shape.family, layout.shape.hidden
    norms = (family.norms - 1) * _normed(layout) * hidden // layout.tensor
    read = (family.norms - 1 - family.norms_behind) * hidden
    return norms + read + _mlp_elements(layout.shape, layout.expert_ranks)


def _normed(layout: Layout) -> int:
    """Numbers of `computed` bytes that a norm keeps of each that it norms, beside what is read of it."""
    family = layout.shape.family
    if layout.computed > 2 or family.norm_bias:
        return 1
    return 2 if layout.adapter else 4 if family.norms_behind else 3


def _mlp_elements(shape: ModelShape, expert_ranks: int) -> int:
    experts = shape.experts
    if experts is None:
        return (4 if shape.family.projections == 3 else 2) * shape.intermediate
    hidden = (2 if expert_ranks == 1 else 3) * shape.hidden
    return experts.chosen * (hidden + 4 * experts.width) + 3 * experts.count


def _one_layer(layout: Layout, tokens: int, attended: int = 0) -> int:
    """Bytes that one layer keeps."""
    return _layer_elements(layout, tokens, attended) * layout.computed


def scores_bytes(layout: Layout, tokens: int, longest: int, *, trained: bool) -> int:
    """Of attention in one layer, forward, or backward as well where it is computed again. tokens: of all rows."""
    shape, wide = layout.shape, max(layout.computed, 4)
    if not shape.bounded or layout.ring:
        return 0
    made = min(shape.heads * tokens * longest, SCORES_ELEMENTS)
    return made * (layout.computed + (3 if trained else 2) * wide)


def logits_bytes(layout: Layout, responses: int, *, trained: bool) -> int:
    """Of the tokens of a chunk, forward (twice over) or backward (four times), in at least four bytes."""
    shape = layout.shape
    if not responses:
        return 0
    chunk = min(responses * shape.vocabulary, max(LOGITS_ELEMENTS, shape.vocabulary))
    wide = max(layout.computed, 4)
    if not trained:
        return chunk * wide * 2
    return chunk * wide * 4 + _last_gradient(layout)


def _last_gradient(layout: Layout) -> int:
    """Bytes of the gradient of the last layer, before it is added to what there is."""
    return 0 if layout.adapter else layout.shape.embedding * max(layout.computed, 4)
