"""Signals that ask a process to stop gracefully (SIGTERM, as at a preemption), and which of them it heeds."""

import signal

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HELD_BACK = (signal.SIGTERM, signal.SIGINT)
"""Blocked in a fork server, whose end is that of its launcher, and in a fork until its module has handlers."""


def heeded() -> list[signal.Signals]:
    """Requests to stop that nobody ignores on purpose, as `nohup` does and `&` in a script."""
    return [one for one in REQUESTS if signal.getsignal(one) != signal.SIG_IGN]


def hold_signals() -> None:
    """A signal to a whole group or container is meant for the workers, and their launcher speaks to them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)


def release_signals() -> None:
    """A forked module calls it once it has handlers; nothing changes where nothing was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def exit_on_signal(number: int, _frame: object) -> None:
    """A handler for a process that does not listen yet. Process 1 of a container has no default: without one it would
    not hear SIGTERM, and a pod that is deleted meanwhile would use all its grace."""
    raise SystemExit(128 + number)
