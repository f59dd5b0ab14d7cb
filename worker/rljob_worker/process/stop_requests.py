"""Signals that ask a process to stop, and which of them it heeds."""

import signal

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeded() -> list[signal.Signals]:
    """Requests to stop that nobody ignores on purpose, as `nohup` does and `&` in a script."""
    return [one for one in REQUESTS if signal.getsignal(one) != signal.SIG_IGN]


def leave(number: int, _frame: object) -> None:
    """A handler for a process that does not listen yet. Process 1 of a container has no default: without one it would
    not hear SIGTERM, and a pod that is deleted meanwhile would use all its grace."""
    raise SystemExit(128 + number)
