"""Bytes of the tensors there are on a device and on its host, now and at most."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CountedBytes(TorchDispatchMode):
    """Every storage that an operator made while this was on, until nobody holds it; also behind the block, so that a
    later one goes on with what is left. By type of device: what lies on "cpu" is the host's.

    What a kernel takes for itself while it runs is not seen, and neither is what an allocator keeps or rounds up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._sizes: dict[int, tuple[str, int]] = {}

    def restart(self) -> None:
        """Forget what was most before."""
        self.most = Counter(self.now)

    def __enter__(self) -> CountedBytes:
        self._resized = _watched_resizes(self._resize)
        self._resized.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._resized.__exit__(*error)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back with what lies here
        if operator is torch.ops.aten._local_scalar_dense.default:
            return 1 if not arguments[0].is_floating_point() else 1.0  # of what has no numbers
        result = operator(*arguments, **(options or {}))
        for item in tree_leaves(result):
            if isinstance(item, torch.Tensor) and not isinstance(item, DTensor):
                self._see(item)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or tensor.device.type == "meta":
            return
        self._sizes[key] = tensor.device.type, 0
        weakref.finalize(storage, self._forget, key)
        self._resize(storage)

    def _resize(self, storage: torch.UntypedStorage) -> None:
        """To what it has now."""
        if storage._cdata in self._sizes:
            place, before = self._sizes[storage._cdata]
            size = storage.nbytes()
            self._sizes[storage._cdata] = place, size
            self.now[place] += size - before
            self.most[place] = max(self.most[place], self.now[place])

    def _forget(self, key: int) -> None:
        place, size = self._sizes.pop(key)
        self.now[place] -= size


@contextmanager
def _watched_resizes(resized: Any) -> Iterator[None]:
    """FSDP gives memory back and takes it again without an operator."""
    resize = torch.UntypedStorage.resize_

    def watched(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = resize(storage, size)
        resized(storage)
        return result

    torch.UntypedStorage.resize_ = watched
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize
