"""How a plan wants vLLM started."""

from __future__ import annotations

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings

_MOST_ROWS = 256
"""Rows at once: more gain little, and the logits of each are a whole vocabulary."""
_DTYPES = {"Float32": "float32", "BFloat16": "bfloat16"}


def settings_of(plan: Plan, engine: EnginePlan) -> VLLMSettings:
    """The settings of one engine; identical on every worker."""
    spec = plan.spec
    rollout, options = spec.rollout, spec.rollout.engine_options
    rows = -(-spec.num_rows // engine.mesh.dp)
    return VLLMSettings(
        dtype=_DTYPES[plan.precision],
        max_batch_rows=min(rows, _MOST_ROWS),
        memory_fraction=rollout.memory_fraction,
        longest_row=spec.longest_row,
        workers_per_host=plan.group(engine.group).workers_per_host,
        tensor=engine.mesh.tp,
        block_size=options.block_size,
        max_batched_tokens=options.max_batched_tokens,
        prefix_caching=options.prefix_caching is not False,
        enforce_eager=options.enforce_eager is True,
        batch_invariant=options.batch_invariant is True,
        speculative_tokens=options.speculative_tokens or 0,
    )
