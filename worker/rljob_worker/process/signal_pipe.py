"""Signals as bytes of a file descriptor, so that one `select` waits for everything."""

import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class SignalPipe:
    """Takes the signals while it is entered. Restores handlers on exit."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = signals
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)

    def __enter__(self) -> Self:
        self._old_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._old = {one: signal.signal(one, lambda *_: None) for one in self._signals}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one, handler in self._old.items():
            signal.signal(one, handler)
        signal.set_wakeup_fd(self._old_fd)
        self.close()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_end)

    def read(self) -> list[int]:
        """The signals that came since the last call."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []
