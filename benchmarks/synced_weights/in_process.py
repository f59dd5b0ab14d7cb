"""From the engine that trains to the one that generates, both in one process that nobody shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from private_memory import give_back_what_is_freed, watched
from transformers import Qwen3Config

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.weights.endpoints import InProcessEndpoint
from synced_weights.ceilings import memcpy
from synced_weights.processes import median

CPU = torch.device("cpu")
END = 1


@dataclass(frozen=True, slots=True)
class SyncCase:
    """How the two engines keep the model."""

    name: str
    precision: str
    lends: bool


CASES = (
    SyncCase("Float32, one memory for both", "Float32", lends=True),
    SyncCase("Float32, a copy each", "Float32", lends=False),
    SyncCase("BFloat16 of Float32", "BFloat16", lends=False),
)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Measurements of one case."""

    num_bytes: int
    """Of the weights that generate."""
    seconds: float
    memcpy_seconds: float
    extra_bytes: int
    """The most private memory during a sync beyond what there was."""
    bucket_bytes: int
    """The largest that weights go in."""


def write_config(path: Path, hidden: int, layers: int) -> None:
    Qwen3Config(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        vocab_size=32768,
        tie_word_embeddings=True,
        eos_token_id=END,
    ).save_pretrained(path)


def measure(path: Path, case: SyncCase, rounds: int, folder: Path) -> SyncResult:
    (result,) = run_fresh_ranks(1, _measure, folder, str(path), case, rounds, preload=("synced_weights.in_process",))
    assert isinstance(result, SyncResult)
    return result


def _measure(_rank: int, path: str, case: SyncCase, rounds: int) -> SyncResult:
    give_back_what_is_freed()
    settings = TrainSettings(precision=case.precision)
    train = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU)
    model = train.model if case.lends else random_policy(path, settings.dtype, 1)
    rollout = TransformersRollout(model, CPU, (END,), owns_weights=not case.lends)
    way = InProcessEndpoint(train, rollout, WeightSlices(), 0)
    sizes = [parameter.nbytes for parameter in rollout.model.parameters()]
    seconds = median(lambda: way.sync(1), rounds)
    with watched() as peak:
        way.sync(2)
    bucket = max(min(BUCKET_BYTES, sum(sizes)), *sizes)
    return SyncResult(sum(sizes), seconds, memcpy(sum(sizes), rounds), peak.beyond, bucket)
