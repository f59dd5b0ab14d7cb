"""Memory of what passes through a model, forward and backward.

With T tokens of a micro-batch, L layers and c bytes of a computed number:

    activations  T L a c, with a elements that a layer keeps of a token:
                     norms            of each norm's width the result without the weight, and with it where a matrix
                                      reads that; in bf16 also what is normed, in four bytes, and so is the result where
                                      its product is; of adapters not the result, which the weight's gradient needs.
                                      One kernel, as on CUDA, keeps what is normed in place of all that
                     attention        queries, keys, values and the output, and the output as its projection reads it;
                                      the first four once more for every further row that attends over a shared prompt;
                                      on accelerators in Float32 keys and values as wide as queries besides
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
    logits       4 x e x c at most, however long the rows, of e logits at once (sizes.logits_elements), 14 x e in bf16:
                 three kept chunks and two in four bytes. Less where the last chunk, which is computed first, is not
                 full: then 12 x e, or 4 x e + 10 x those of the last one. One more gradient of the last layer. Of
                 logits that are capped, or compared with others, one chunk is kept and three more are computed
"""

from __future__ import annotations

from rljob_api.memory.model_shape import ModelShape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.sizes import SCORES_ELEMENTS


def activations(
    layout: ParallelLayout, tokens: int, *, recompute: bool, attended: int = 0, micro_batches: int = 1
) -> int:
    """Bytes that forward passes keep of `micro_batches` micro-batches."""
    shape = layout.shape
    own = tokens * shape.hidden // layout.tensor
    kept = shape.layers * (own if recompute else _layer_elements(layout, tokens, attended))
    kept += 4 * own + 2 * shape.head_dim * tokens
    visiting = 2 * shape.key_width * (2 * layout.computed + 3 * max(layout.computed, 4)) if layout.ring else 0
    return micro_batches * kept * layout.computed + visiting * tokens


def _layer_elements(layout: ParallelLayout, tokens: int, attended: int = 0) -> int:
    """What one layer keeps."""
    shape, again = layout.shape, max(0, attended - tokens)
    ahead = _attention_elements(layout) * tokens + 2 * (shape.query_width + shape.key_width) * again
    return ahead + _behind_attention_elements(layout) * tokens


def layer_on_its_way_back(layout: ParallelLayout, tokens: int, attended: int, scores: int, *, recompute: bool) -> int:
    """Bytes of the layer that has most, beyond what forward passes keep. scores: bytes of those in one layer."""
    shape = layout.shape
    width = shape.intermediate if shape.experts is None else shape.experts.chosen * shape.experts.width
    in_mlp = (shape.family.projections - 1) * width * tokens * layout.computed
    behind = _behind_attention_elements(layout) * tokens * layout.computed
    again = one_layer(layout, tokens, attended) if recompute else 0
    return again + max(in_mlp, scores - behind)


def _attention_elements(layout: ParallelLayout) -> int:
    """Elements that attention and the norm before it keep for one token."""
    shape, normed = layout.shape, _normed(layout)
    of_heads = normed * (shape.query_width + shape.key_width) if shape.family.query_key_norms else 0
    norm = normed * shape.hidden // layout.tensor + shape.hidden
    # one key head for several query heads: see `attention.varlen.groups_heads`
    repeated = 2 * (shape.query_width - shape.key_width) * layout.repeats_key_heads
    return norm + of_heads + 3 * shape.query_width + 2 * shape.key_width + repeated


def _behind_attention_elements(layout: ParallelLayout) -> int:
    """Elements that the rest of the layer keeps for one token."""
    family, hidden = layout.shape.family, layout.shape.hidden
    norms = (family.norms - 1) * _normed(layout) * hidden // layout.tensor
    read = (family.norms - 1 - family.norms_behind) * hidden
    return norms + read + _mlp_elements(layout.shape, layout.expert_ranks)


def _normed(layout: ParallelLayout) -> int:
    """Numbers of `computed` bytes that a norm keeps of each that it norms, besides what is read of it."""
    family = layout.shape.family
    if layout.computed > 2 or family.norm_bias or layout.fuses_norms:
        return 1
    return 2 if layout.adapter else 4 if family.norms_behind else 3


def _mlp_elements(shape: ModelShape, expert_ranks: int) -> int:
    experts = shape.experts
    if experts is None:
        return (4 if shape.family.projections == 3 else 2) * shape.intermediate
    hidden = (2 if expert_ranks == 1 else 3) * shape.hidden
    return experts.chosen * (hidden + 4 * experts.width) + 3 * experts.count


def one_layer(layout: ParallelLayout, tokens: int, attended: int = 0) -> int:
    """Bytes that one layer keeps."""
    return _layer_elements(layout, tokens, attended) * layout.computed


def scores_bytes(layout: ParallelLayout, tokens: int, longest: int, *, trained: bool) -> int:
    """Bytes of attention scores in one layer, forward, and backward where computed again. tokens: of all rows."""
    shape, wide = layout.shape, max(layout.computed, 4)
    if not shape.bounded or layout.ring:
        return 0
    made = min(shape.heads * tokens * longest, SCORES_ELEMENTS)
    return made * (layout.computed + (3 if trained else 2) * wide)


def logits_bytes(layout: ParallelLayout, responses: int, *, trained: bool) -> int:
    """Bytes of the logits of some tokens: of a chunk of them forward, and backward of chunks that are kept and of what
    is computed of the one at work, which go back from the last, the only one that may not be full."""
    if not responses:
        return 0
    words, computed, wide = layout.shape.vocabulary, layout.computed, max(layout.computed, 4)
    chunk = layout.tokens_of_chunk
    if not trained:
        return min(chunk, responses) * words * ((0 if computed == wide else computed) + 2 * wide)
    # in two bytes three are kept beside a distribution and what it is made of; else one, or more in place of three more
    num_kept, at_work = (3, 2) if computed < wide and not layout.compares_logits else (1, 3)
    kept = _last_chunks(responses, chunk, num_kept)
    again = min(chunk, responses) * (computed + at_work * wide)  # of a chunk that is not kept
    of_kept = (sum(kept[: place + 1]) * computed + size * at_work * wide for place, size in enumerate(kept))
    return max(again, *of_kept) * words + last_gradient(layout)


def _last_chunks(responses: int, chunk: int, count: int) -> list[int]:
    """Tokens of each. 2,500 in chunks of 1,000: [1000, 1000, 500]."""
    starts = range(0, responses, chunk)
    return [min(chunk, responses - start) for start in starts[-count:]]


def last_gradient(layout: ParallelLayout) -> int:
    """Bytes of the gradient of the last layer, before it is added to what there is."""
    return 0 if layout.adapter else layout.shape.embedding * max(layout.computed, 4)
