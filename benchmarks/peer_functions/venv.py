"""A venv with verl, TRL and siiRL on the CPU, made on demand, and scripts run in it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from peer_venv import Venv

VENV = Venv(
    "oracles", ("torch==2.13.0", "verl==0.9.1", "trl==1.16.0", "loguru==0.7.3", "dacite==1.9.2"), ("siirl==0.2.0",)
)
"""siiRL declares vLLM and an older tensordict, and runs without the one and with the newer: installed without what it
declares, plus what its functions import."""
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def run(script: str, *arguments: str, with_ours: bool = False) -> None:
    """Run a script of this folder in the venv, with our packages only if asked; its warnings go to nowhere."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    if with_ours:
        environment["PYTHONPATH"] = os.pathsep.join(str(_ROOT / folder) for folder in ("worker", "crds"))
    command = [str(VENV.python()), str(_HERE / script), *arguments]
    with tempfile.TemporaryDirectory() as directory:  # siiRL writes logs to where it runs
        done = subprocess.run(command, env=environment, cwd=directory, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{script} failed in the peers' venv:\n{done.stderr[-4000:]}")
