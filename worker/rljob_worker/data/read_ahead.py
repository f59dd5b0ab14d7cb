"""Reads the next batch while a step works on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Batch = TypeVar("Batch")
Ordinals = NDArray[np.int64]


@dataclass(frozen=True)
class _Begun(Generic[Batch]):
    ordinals: Ordinals
    batch: Future[Batch]


class ReadAhead(Generic[Batch]):
    """At most one batch ahead, by a thread of its own; what goes wrong there is raised where the batch is taken.

    The thread is a daemon: a process that ends does not wait for a store that does not answer.
    """

    def __init__(self, read: Callable[[Ordinals], Batch]) -> None:
        self._read = read
        self._begun: _Begun[Batch] | None = None

    def begin(self, ordinals: Ordinals) -> None:
        """Read these next. Nothing happens while an earlier batch, that nobody took, is still being read."""
        if self._begun is not None and not self._begun.batch.done():
            return
        self._begun = _Begun(ordinals, Future())
        threading.Thread(target=self._fill, args=(self._begun,), name="read-ahead", daemon=True).start()

    def take(self, ordinals: Ordinals) -> Batch:
        """The batch of these ordinals: the one that was begun, or if that is another, one that is read now."""
        begun = self._begun
        if begun is None or not np.array_equal(begun.ordinals, ordinals):
            return self._read(ordinals)
        self._begun = None
        return begun.batch.result()

    def _fill(self, begun: _Begun[Batch]) -> None:
        try:
            begun.batch.set_result(self._read(begun.ordinals))
        except BaseException as error:  # whatever it is, it belongs to the step that needs the batch
            begun.batch.set_exception(error)
