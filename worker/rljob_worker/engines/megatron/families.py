"""The models whose layers Megatron-core computes as transformers does, each of which a test holds against it.

Another one would be trained wrongly without a word: the layers read queries, keys, values and a gated MLP by name, and
leave out what else an architecture does, such as Mistral's window, which its layers take from the config of the model.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from rljob_api.memory.model_shape import FAMILIES
from rljob_worker.errors import InvalidJob

COMPUTED = frozenset(name for name, family in FAMILIES.items() if family.megatron)
"""By the `model_type` of the config."""


def require_family(config: PretrainedConfig) -> None:
    """Raises InvalidJob for a model of another family, and for layers that end in biases, of which Megatron's have
    none."""
    if config.model_type not in COMPUTED:
        raise InvalidJob(
            f"training.engine Megatron: its layers do not compute models of type {config.model_type!r}, but "
            f"{', '.join(sorted(COMPUTED))}; write FSDP"
        )
    ends = [name for name in ("attention_bias", "mlp_bias") if getattr(config, name, False)]
    if ends:
        raise InvalidJob(
            f"training.engine Megatron: layers with {' and '.join(ends)} are not built yet, and config.json asks for "
            "it; write FSDP"
        )
