"""Models as a service loads them: whole, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_api.catalogue.services import ServedModel
from rljob_worker.errors import InvalidJob

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}

Answer = Mapping[str, Any]
"""What is answered to a row: `reward`, and what goes with it."""


def load_model(family: Any, options: ServedModel) -> Any:
    """A model of an Auto class of transformers, to read with. Raises InvalidJob: none there, or one of another kind,
    whose missing head would be random numbers."""
    try:
        model, told = family.from_pretrained(options.path, dtype=DTYPES[options.precision], output_loading_info=True)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"options.path {options.path!r} is no model for {family.__name__}: {error}") from error
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise InvalidJob(
            f"options.path {options.path!r} lacks weights that {family.__name__} needs ({names}); name a model that "
            "was trained as one"
        )
    return model.eval()


def padded(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, [rows, longest], padded on the right."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}
