"""Imports what every worker has imported by the end of its first step, for the process that workers are forked from.

No code of users, no work, no device: a process that has touched one cannot be forked.
"""

import importlib

import rljob_worker.engines.fsdp
import rljob_worker.engines.fsdp.optimizer.adamw
import rljob_worker.engines.models
import rljob_worker.engines.planned_model
import rljob_worker.engines.rollout.transformers
import rljob_worker.metrics.trackers.tensorboard
import rljob_worker.runtime.joining  # noqa: F401

LATE = (
    "datasets",
    "datasets.io.parquet",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.processing_utils",
)
"""What libraries import when they are first used."""

for name in LATE:
    importlib.import_module(name)
