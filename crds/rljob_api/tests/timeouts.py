"""How long tests wait for another thread, process or server."""

import os


def factor_of(text: str) -> float:
    """RLJOB_TEST_PATIENCE as a number."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ValueError(f"RLJOB_TEST_PATIENCE is {text!r}: set a factor above 0, such as 4 on a busy machine")
    return factor


TIMEOUT_FACTOR = factor_of(os.environ.get("RLJOB_TEST_PATIENCE", "1"))
"""Scales every timeout of the tests, for machines that are slower or busier."""

TEST_TIMEOUT_SECONDS = 60.0 * TIMEOUT_FACTOR
"""The timeout of one wait. What takes longer, such as a whole job, gets a multiple of it."""
