"""The parts one after the other, and the tables they make; a part that fails says so and costs no other."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from on_device.device_memory import forget, shown
from on_device.parts import VARIANTS, DeviceSetup, Variant, generation, sync, update
from on_device.shapes import DeviceModel

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12}
"""Of bfloat16 without sparsity, by a word of the device's name."""

GENERATION = "| generation | steps | tokens/s | first, s | most memory, GiB | freed by sleep, GiB |"
UPDATE = "| update | tokens/s | TFLOP/s | MFU | kept, GiB | plan | peak, GiB | plan |"
SYNC = "| sync in one process | s | GB | GB/s |"
UNVERIFIED = (
    "Not run by this command: NCCL between worker groups, several devices, vLLM, models with experts, whole jobs."
)


def report(place: DeviceSetup, generating: tuple[str, ...], training: tuple[str, ...], folder: Path) -> Iterator[str]:
    """Lines of Markdown, as they are found. generating, training: names of model sizes."""
    models = {name: DeviceModel.write(name, folder) for name in {*generating, *training}}
    yield from _table(GENERATION)
    for name in generating:
        for graphs in (False, True):
            yield _row(
                place,
                [name, "recorded" if graphs else "eager"],
                lambda n=name, g=graphs: _generation(models[n], place, g),
            )
    yield ""
    yield from _table(UPDATE)
    for name, variant in itertools.product(training, VARIANTS):
        yield _row(place, [f"{name}, {variant.name}"], lambda n=name, v=variant: _update(models[n], place, v))
    yield ""
    yield from _table(SYNC)
    for name in training:
        yield _row(place, [name], lambda n=name: _sync(models[n], place))
    yield ""
    yield UNVERIFIED


def peak_flops(device: torch.device) -> float | None:
    """Peak floating-point operations per second of a known device; None for any other."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for word, peak in PEAK_FLOPS.items() if word in name), None)


def _generation(model: DeviceModel, place: DeviceSetup, graphs: bool) -> list[str]:
    result = generation(model, place, graphs=graphs)
    speed = f"{result.tokens_per_second:.0f}"
    return [speed, f"{result.first_seconds:.1f}", shown(result.memory), shown(result.freed)]


def _update(model: DeviceModel, place: DeviceSetup, variant: Variant) -> list[str]:
    result, most = update(model, place, variant), peak_flops(place.device)
    used = "–" if most is None else f"{result.flops_per_second / most:.0%}"
    speeds = [f"{result.tokens_per_second:.0f}", f"{result.flops_per_second / 1e12:.2f}", used]
    return [
        *speeds,
        shown(result.kept),
        shown(result.kept_estimate),
        shown(result.peak),
        shown(result.peak_estimate),
    ]


def _sync(model: DeviceModel, place: DeviceSetup) -> list[str]:
    seconds, num_bytes = sync(model, place)
    return [f"{seconds:.3f}", f"{num_bytes / 1e9:.2f}", f"{num_bytes / seconds / 1e9:.1f}"]


def _row(place: DeviceSetup, names: list[str], work: Callable[[], list[str]]) -> str:
    try:
        cells = work()
    except Exception as error:  # a machine is lent for minutes: the other parts are worth having
        traceback.print_exc()
        cells = [f"failed: {type(error).__name__}"]
    forget(place.device)
    return f"| {' | '.join([*names, *cells])} |"


def _table(head: str) -> list[str]:
    return [head, "|---|" + "--:|" * (head.count("|") - 2)]
