"""How many files a process may have open. A connection is one; most systems allow 1,024 until asked for more."""

from __future__ import annotations

import resource


def allow_files(count: int) -> None:
    """As many as that, where the system lets us; never fewer than now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
