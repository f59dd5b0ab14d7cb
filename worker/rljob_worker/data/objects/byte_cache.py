"""What was read last, up to so many bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class ByteCache:
    """Threads may share it. What is larger than all of it is handed out and not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def find_or_make(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """What is kept under the key, or is made now; two threads that miss it both make it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        made = make()
        with self._lock:
            self._keep(key, made, size(made))
        return made

    def _keep(self, key: Hashable, made: Any, num_bytes: int) -> None:
        self._num_bytes += num_bytes - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = (made, num_bytes)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1][1]
