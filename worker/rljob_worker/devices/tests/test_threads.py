"""Threads that torch starts for devices."""

import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rljob_worker.devices.modules import use

use("cpu", 0)
with FakeTensorMode():
    torch.ones(2) + 1
torch.ones(2, requires_grad=True).sum().backward()
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print([name for name in names if name.startswith("pt_auto")])
"""


@pytest.mark.slow
def test_a_worker_on_cpus_has_no_autograd_threads_of_devices_that_are_none() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
