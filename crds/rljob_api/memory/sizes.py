"""How much engines have in memory at once: they keep to it, and the Plan counts with it."""

NUMBER_BYTES = {"Float32": 4, "BFloat16": 2, "Float64": 8}
"""By the precision of a job."""
HELD_BYTES = 1 << 30
"""Largest model whose gradients, and on a CPU weights, stay whole on every rank between micro-batches."""
BUCKET_BYTES = 64 << 20
"""Weights that are gathered at once for export and sync; a tensor that is larger goes alone."""
MIN_UNIT_BYTES = 32 << 20
"""Layers are gathered together up to this size."""
STATE_BLOCK, LEAST_STATE_BLOCK = 256, 64
"""Numbers of an optimizer in Int8 that share a scale, at most and at least: of fewer, scales are not small any more."""
PREFILL_TOKENS = 16384
"""Tokens of prompts that one forward of generation computes; a longer prompt goes alone."""
ATTENDED = 2
"""Tokens that the rows of a micro-batch attend over, at most, per token that may be computed."""
LOGITS_ELEMENTS = 1 << 26
"""Logits in memory at once, at least: 440 tokens of a vocabulary of 152,000. Of fewer, products with the last layer
take longer than they need to: each reads all of it, and adds to all of its gradient."""
LOGITS_PART = 32
"""Which part of an accelerator's memory logits take, four times over: 1,060 such tokens of 80 GiB."""
SCORES_ELEMENTS = 1 << 24
"""Scores of attention in memory at once, where a model bounds them; other kernels keep none."""


def logits_elements(memory: int | None) -> int:
    """Logits in memory at once. memory: bytes of the accelerator; None on CPUs, and where nobody knows."""
    return LOGITS_ELEMENTS if memory is None else max(LOGITS_ELEMENTS, memory // (LOGITS_PART * 16))
