"""Models as a service loads them: whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_api.catalogue.services import ServedModel
from rljob_worker.devices.modules import num_devices
from rljob_worker.errors import InvalidJob
from rljob_worker.services.placement import ModelPlacement

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}

Answer = Mapping[str, Any]
"""What is answered to a row: `reward`, and what goes with it."""


def load_model(
    auto_class: Any, options: ServedModel, place: ModelPlacement, count: Callable[[str], int] = num_devices
) -> Any:
    """A model of an Auto class of transformers, to read with, whose `device` is where its inputs belong. Over several
    accelerators its layers lie one after the other. Raises InvalidJob: none there, one of another kind, whose missing
    head would be random numbers, or fewer accelerators than the copy asks for."""
    require_accelerators(place, count)
    spread = {"device_map": "auto"} if place.accelerators > 1 else {}
    dtype = DTYPES[options.precision]
    try:
        model, loading_info = auto_class.from_pretrained(options.path, dtype=dtype, output_loading_info=True, **spread)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"options.path {options.path!r} is not a model for {auto_class.__name__}: {error}") from error
    if loading_info["missing_keys"]:
        names = ", ".join(sorted(loading_info["missing_keys"])[:3])
        raise InvalidJob(
            f"options.path {options.path!r} lacks weights that {auto_class.__name__} needs ({names}); name a model "
            "that "
            "was trained as one"
        )
    if spread and (left_over := {"cpu", "disk"} & {str(item) for item in model.hf_device_map.values()}):
        raise InvalidJob(
            f"options.path {options.path!r} does not fit in {place.accelerators} accelerators: layers of it would be "
            f"in {' and '.join(sorted(left_over))}; ask for more in workerGroup.accelerator.count, or write precision "
            "BFloat16"
        )
    return (model if spread else model.to(place.device)).eval()


def require_accelerators(place: ModelPlacement, count: Callable[[str], int] = num_devices) -> None:
    """Before gigabytes are read. On a machine whose accelerators nobody has counted, this is who counts them. Raises
    InvalidJob."""
    if place.accelerators and (result := count(place.device)) < place.accelerators:
        raise InvalidJob(
            f"a copy wants {place.accelerators} {place.device.upper()} devices (profile {place.profile}) and finds "
            f"{result or 'none'}: there are fewer than workers and services ask for together, or torch here is not "
            "made "
            "for them"
        )


def padded(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, [rows, longest], padded on the right."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def on_device(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """What a model reads, where it reads it."""
    return {name: item.to(device) for name, item in inputs.items()}
