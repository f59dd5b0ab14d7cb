"""The pipes to a guardian and its processes in an event loop: what they do not take at once is written as they do."""

from __future__ import annotations

import asyncio

from rljob_worker.sandbox.guardian.user_processes import Guardian, UserProcess


class LoopPipes:
    """Writers of one guardian's pipes in one event loop."""

    def __init__(self, guardian: Guardian, loop: asyncio.AbstractEventLoop) -> None:
        self._guardian, self._loop = guardian, loop

    def flush(self, user: UserProcess) -> None:
        """Write the rest of what was sent to a process, and what that asked of the guardian."""
        user.flush()
        if user.has_unsent:
            self._loop.add_writer(user.requests, self.flush, user)
        else:
            self._loop.remove_writer(user.requests)
        self.flush_guardian()

    def flush_guardian(self) -> None:
        """Write the rest of what was sent to the guardian."""
        self._guardian.flush()
        if self._loop.is_closed():
            return
        if self._guardian.has_unsent:
            self._loop.add_writer(self._guardian, self.flush_guardian)
        else:
            self._loop.remove_writer(self._guardian)

    def forget(self, user: UserProcess) -> None:
        """Watch a process's pipes no longer, before it is closed."""
        if self._loop.is_closed():
            return
        self._loop.remove_writer(user.requests)
        for descriptor in (user.results, user.output):
            if descriptor is not None:
                self._loop.remove_reader(descriptor)

    def close(self) -> None:
        """Watch the guardian no longer."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._guardian)
            self._loop.remove_writer(self._guardian)
