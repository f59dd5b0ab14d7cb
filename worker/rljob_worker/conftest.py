"""For all tests of the worker."""

import signal

import pytest

# a shell starts background jobs with SIGINT ignored, and children inherit that: tests that press Ctrl-C would hang
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs an accelerator is run where there is one; elsewhere it is deselected, and counted nowhere."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_accelerator():
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.cuda.is_available())
