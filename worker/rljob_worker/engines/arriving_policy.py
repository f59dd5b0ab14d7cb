"""A policy that arrives tensor by tensor, in any order, from anywhere: each once, none missing, none too many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from rljob_worker.errors import InvalidJob

_NAMED = 3
"""Names that a message spells out."""


def copy_policy(
    targets: Mapping[str, torch.Tensor],
    weights: Iterable[tuple[str, torch.Tensor]],
    version: int,
    frozen: Callable[[str], bool] = lambda name: False,
) -> None:
    """Fill `targets` in place. Raises InvalidJob as `whole_policy` does."""
    with torch.no_grad():
        for name, tensor in whole_policy(targets, weights, version, frozen):
            target = targets[name]
            if target.data_ptr() != tensor.data_ptr() or target.device != tensor.device:
                target.copy_(tensor)


def whole_policy(
    targets: Mapping[str, torch.Tensor],
    weights: Iterable[tuple[str, torch.Tensor]],
    version: int,
    frozen: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights`, each under the first name that `targets` has for it. Of those only the shape is looked at, and which
    are one: tied ones, which are one tensor under several names, come under any one of them. frozen: which names may
    be missing, since nobody trains them.

    Raises InvalidJob by name: the engine that sends has another model than the one that gets.
    """
    first_names: dict[int, str] = {}
    for name, target in targets.items():
        first_names.setdefault(id(target), name)
    missing, optional = set(first_names), {number for number, name in first_names.items() if frozen(name)}
    for name, tensor in weights:
        target = targets.get(name)
        if target is None or target.shape != tensor.shape:
            has = "none of that name" if target is None else f"one of shape {tuple(target.shape)}"
            raise _another_model(version, f"{name} of shape {tuple(tensor.shape)}, but the rollout model has {has}")
        if id(target) not in missing:
            raise _another_model(version, f"{name} came twice, under this name or one that it is tied to")
        missing.remove(id(target))
        yield first_names[id(target)], tensor
    missing -= optional
    if missing:
        names = [name for name, target in targets.items() if id(target) in missing]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise _another_model(version, f"{', '.join(names[:_NAMED])}{more} of the rollout model did not come")


def _another_model(version: int, what: str) -> InvalidJob:
    return InvalidJob(f"weights of policy version {version}: {what}; both engines must load the same model")
