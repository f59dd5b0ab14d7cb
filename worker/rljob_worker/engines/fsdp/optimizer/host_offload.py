"""Tensors that wait in the memory of the host while their device is needed for something else."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rljob_worker.devices.copies import empty_on_host


class HostOffload:
    """Tensors of one device that sleep and wake together. Asleep they are the same objects without memory, and what
    they held is in copies on the host, which stay reserved from the first sleep on: pages that a device reaches by
    itself take seconds to make.

    Between `sleep` and `wake` only `now` may look at them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._copies: list[torch.Tensor] = []
        self.is_asleep = False

    @property
    def held_bytes(self) -> int:
        """What `sleep` would free now."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors)

    def sleep(self) -> None:
        """Idempotent. What is queued on the device may not be done yet: `wait_for_copies`."""
        if self.is_asleep:
            return
        self._copies = self._copies or [empty_on_host(tensor) for tensor in self._tensors]
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            copy.copy_(tensor, non_blocking=True)
            tensor.untyped_storage().resize_(0)  # a stream takes it again only behind the copy
        self.is_asleep = True

    def wake(self) -> None:
        """Idempotent."""
        if not self.is_asleep:
            return
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.untyped_storage().resize_(copy.nbytes)
            tensor.copy_(copy, non_blocking=True)
        self.is_asleep = False

    def now(self, tensor: torch.Tensor) -> torch.Tensor:
        """What holds the values of one of the tensors: it, or its copy."""
        if not self.is_asleep:
            return tensor
        return next(copy for own, copy in zip(self._tensors, self._copies, strict=True) if own is tensor)
