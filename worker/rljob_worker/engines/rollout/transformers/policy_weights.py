"""The weights that a rollout engine generates with: its own, or lent by the engine that trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from rljob_worker.engines.arriving_policy import copy_policy
from rljob_worker.engines.models import checkpoint_tensors


class PolicyWeights:
    """The parameters of one model, and their policy version."""

    def __init__(self, model: torch.nn.Module, *, owned: bool, frozen: Callable[[str], bool]) -> None:
        """owned: nobody else computes with the model. frozen: of which parameters new weights need not come."""
        self._model, self._owned, self._frozen = model, owned, frozen
        self.version = 0
        self.is_whole = True

    @property
    def nbytes(self) -> int:
        """What `drop` would give back."""
        return sum(storage.nbytes() for storage in self._storages())

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take a whole policy, as `RolloutEngine.load_weights` says."""
        self.is_whole = False
        self._give_memory()
        targets = dict(checkpoint_tensors(self._model.named_parameters(remove_duplicate=False)))
        copy_policy(targets, weights, version, self._frozen)
        self.version, self.is_whole = version, True

    def drop(self) -> None:
        """Give the memory of owned weights back, until the next `load`."""
        for storage in self._storages():
            self.is_whole = False
            storage.resize_(0)

    def require_whole(self) -> None:
        assert self.is_whole, f"the policy after version {self.version} has not come whole"

    def _storages(self) -> list[torch.UntypedStorage]:
        """The memory of the weights, where it is the engine's own; that of tied ones once."""
        return [parameter.untyped_storage() for parameter in self._model.parameters()] if self._owned else []

    def _give_memory(self) -> None:
        if self._owned:
            for parameter in self._model.parameters():
                # to the size that it has it would be made anew all the same
                if not parameter.untyped_storage().nbytes():
                    parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
