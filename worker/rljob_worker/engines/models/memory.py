"""Memory for parameters: none while a model is built, then this rank's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook


def give_memory(model: torch.nn.Module, device: torch.device, *, parameters_on: torch.device | None = None) -> None:
    """Move a model to its device, its parameters to another one where that is given: those without memory get some,
    with anything in it. Buffers keep their values, tied parameters stay one."""
    home = parameters_on or device
    if any(parameter.is_meta for parameter in model.parameters()):
        _make_room(model, home)
    else:
        model.to(home)
    if home != device:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))


def _make_room(model: torch.nn.Module, device: torch.device) -> None:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tied = list(_tied(model))
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    for first, other in tied:
        module, _, kind = other.rpartition(".")
        setattr(model.get_submodule(module), kind, model.get_parameter(first))


def _tied(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """The first name of a parameter, and another that it has."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            yield first[id(parameter)], name


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Parameters of modules that are made here are on the meta device; buffers, which no file has, are real."""

    def on_meta(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter | None) -> torch.Tensor | None:
        if parameter is None or parameter.is_meta:
            return None  # as it is: tied parameters stay one
        return torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(on_meta)
    try:
        yield
    finally:
        hook.remove()
