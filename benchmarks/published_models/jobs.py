"""Jobs with published models on 80 GiB devices, eight to a host, and what a worker of each has in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.loading.load import parse_job
from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.memory.phases import GroupMemory
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob

GIB = 1 << 30
_QWEN2_5_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
_QWEN2_5_72B = _QWEN2_5_7B | {
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


def _seeing(decoder: Mapping[str, Any]) -> dict[str, Any]:
    tower = {"depth": 32, "hidden_size": 1280, "out_hidden_size": decoder["hidden_size"]}
    width = 3420 if decoder["hidden_size"] == 3584 else 3456
    return {**decoder, "model_type": "qwen2_5_vl", "vision_config": tower | {"intermediate_size": width}}


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """One row."""

    model: str
    config: Mapping[str, Any]
    hosts: int
    prompt: int
    """Most tokens of a prompt, with those of pictures."""
    response: int
    fields: tuple[str, ...] = ()
    """Of the job, as `--set` has them."""

    @property
    def sees(self) -> bool:
        return "vision_config" in self.config

    @property
    def shape(self) -> ModelShape:
        result = parse_shape(self.config)
        assert result is not None
        return result

    def memory(self) -> GroupMemory:
        """Of the worker that has most. Raises InvalidJobError for a job that does not fit."""
        (memory,) = plan(self.parsed(), shapes={self.model: self.shape}).memory
        return memory

    def parsed(self) -> RLJob:
        fields = (
            f"models.0.path={self.model}",
            f"data.maxPromptTokens={self.prompt}",
            f"rollout.maxResponseTokens={self.response}",
            f"workerGroups=[{{name: train, replicas: {self.hosts}, accelerator: {{profile: nvidia-h100, count: 8}}}}]",
            *(("data.imagesColumn=images",) if self.sees else ()),
            *self.fields,
        )
        return parse_job(JOB, fields)


JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: published}
spec:
  models: [{name: actor, path: model}]
  data: {train: [{path: prompts.parquet}], batchSize: 128}
  rewards: [{name: correct, run: "rewards:correct", column: answer}]
  algorithm: {name: GRPO, groupSize: 8, kl: {coefficient: 0}}
  stop: {steps: 100}
  training: {precision: BFloat16, tokensPerMicroBatch: 16384}
  rollout: {engine: VLLM}
  dataBuffer: {memory: 8Gi}
"""
_SPREAD = ("rollout.parallelism={tensor: 8}", "training.memory.offload={optimizer: true}")
JOBS = (
    PublishedJob("Qwen2.5-VL 7B", _seeing(_QWEN2_5_7B), 1, 2048, 2048),
    PublishedJob("Qwen2.5-VL 72B", _seeing(_QWEN2_5_72B), 4, 2048, 2048, _SPREAD),
    PublishedJob("Qwen2.5 72B", _QWEN2_5_72B, 4, 2048, 63488, (*_SPREAD, "training.parallelism.context=8")),
)
HEAD = (
    "| model | devices | tokens of a row | load | generate | train, of it pictures | sync | checkpoint, on the host |",
    "|---|--:|--:|--:|--:|--:|--:|--:|",
)


def table() -> list[str]:
    """Lines of Markdown, GiB."""
    return [*HEAD, *map(_line, JOBS)]


def _line(job: PublishedJob) -> str:
    phases = {phase.phase: phase for phase in job.memory().phases}
    pictures = f", {phases['train'].pictures / GIB:.1f}" if job.sees else ""
    peaks = {name: f"{phase.peak / GIB:.1f}" for name, phase in phases.items()}
    cells = (peaks["load"], peaks["generate"], peaks["train"] + pictures, peaks.get("sync", "–"))
    host = f"{phases['checkpoint'].host / GIB:.1f}" if "checkpoint" in phases else "–"
    row = f"{job.prompt + job.response:,}"
    return f"| {job.model} | {8 * job.hosts} | {row} | {' | '.join(cells)} | {host} |"
