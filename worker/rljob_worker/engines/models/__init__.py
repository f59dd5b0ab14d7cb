"""Models of a directory or a hub name: which ones the engines know, how they are built, where their weights come from.

    model = empty_policy(path, dtype)              every parameter on the meta device: no memory yet
    fully_shard(...), model.to_empty(device)       the engine's: each rank has memory for its shards
    WeightFiles.find(path).fill(model)             each rank reads its own rows of every tensor

    Adapter(...).put_beside(model)                 before it is sharded: what is trained in place of the model
    draw_adapter(model, seed)                      after

`DrawnWeights.of(model, seed)` takes the place of files for a model that is to be trained from nothing, where the job
says so.
"""

from rljob_worker.engines.models.adapter import (
    ADAPTER,
    Adapter,
    adapted_layers,
    adapter_off,
    adapter_parameters,
    base_name,
    draw_adapter,
    is_of_adapter,
    trained_parameters,
)
from rljob_worker.engines.models.building import (
    empty_classifier,
    empty_policy,
    empty_value_model,
    load_policy,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.models.checkpoint_names import TensorPart, TensorPartsOf, checkpoint_tensors, parts_of
from rljob_worker.engines.models.configs import end_token_ids, model_config
from rljob_worker.engines.models.drawn_weights import DrawnWeights
from rljob_worker.engines.models.memory import give_memory
from rljob_worker.engines.models.value_model import VALUE_HEAD, ValueModel
from rljob_worker.engines.models.vision import decoder_layers
from rljob_worker.engines.models.weight_files import WeightFiles

__all__ = [
    "ADAPTER",
    "VALUE_HEAD",
    "Adapter",
    "DrawnWeights",
    "TensorPart",
    "TensorPartsOf",
    "ValueModel",
    "WeightFiles",
    "adapted_layers",
    "adapter_off",
    "adapter_parameters",
    "base_name",
    "checkpoint_tensors",
    "decoder_layers",
    "draw_adapter",
    "empty_classifier",
    "empty_policy",
    "empty_value_model",
    "end_token_ids",
    "give_memory",
    "is_of_adapter",
    "load_policy",
    "model_config",
    "parts_of",
    "random_policy",
    "random_value_model",
    "trained_parameters",
]
