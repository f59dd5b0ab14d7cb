"""What `rljob plan --fit` makes of jobs whose models have no room as they are, on 80 GiB devices."""

from __future__ import annotations

from published_models.jobs import GIB, JOBS, PublishedJob
from rljob_api.planning.fitting import Fit, fit
from rljob_api.planning.planner import plan

_QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}
_QWEN3_32B = _QWEN3_8B | {
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
}
_QWEN3_30B_A3B = _QWEN3_8B | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_QWEN3_235B = _QWEN3_30B_A3B | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}


def _generating_on(tensor: int) -> tuple[str, ...]:
    return (f"rollout.parallelism.tensor={tensor}", "dataBuffer.memory=64Gi")


UNFITTED = (
    PublishedJob("Qwen3 8B", _QWEN3_8B, 1, 2048, 2048, _generating_on(1)),
    PublishedJob("Qwen3 32B", _QWEN3_32B, 1, 2048, 2048, _generating_on(4)),
    PublishedJob("Qwen3 30B-A3B", _QWEN3_30B_A3B, 1, 2048, 2048, _generating_on(4)),
    PublishedJob("Qwen3 235B-A22B", _QWEN3_235B, 16, 2048, 2048, _generating_on(8)),
    PublishedJob("Qwen2.5 72B", JOBS[-1].config, 4, 2048, 63488, _generating_on(8)),
)
HEAD = (
    "| model | devices | tokens of a row | what `--fit` sets | generate | train | sync | on the host: start | later "
    "| training, predicted, s |",
    "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|",
)


def fitted_table() -> list[str]:
    """Lines of Markdown, GiB."""
    return [*HEAD, *map(_line, UNFITTED)]


def fitted(job: PublishedJob) -> Fit:
    return fit(job.parsed(), {job.model: job.shape})


def _line(job: PublishedJob) -> str:
    result = fitted(job)
    (memory,) = plan(result.job, shapes={job.model: job.shape}).memory
    phases = {phase.phase: phase for phase in memory.phases}
    peaks = " | ".join(f"{phases[name].peak / GIB:.1f}" for name in ("generate", "train", "sync"))
    changes = ", ".join(f"`{change.removeprefix('training.')}`" for change in result.overrides) or "nothing"
    row, start = f"{job.prompt + job.response:,}", phases.pop("load").host / GIB
    later = max(phase.host for phase in phases.values()) / GIB
    cells = (job.model, 8 * job.hosts, row, changes, peaks, f"{start:.1f}", f"{later:.1f}", f"{result.seconds:.0f}")
    return f"| {' | '.join(map(str, cells))} |"
