"""A venv with verl, TRL and siiRL on the CPU, made on demand, and scripts run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PEERS = ("torch==2.13.0", "verl==0.9.1", "trl==1.16.0")
SIIRL = "siirl==0.2.0"
"""Declares vLLM and an older tensordict, and runs without the one and with the newer: installed without what it
declares, plus what its functions import."""
SIIRL_NEEDS = ("loguru==0.7.3", "dacite==1.9.2")
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def python() -> Path:
    """Python of the venv. Installed once, about 6 GB under the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "rljob" / "oracles"
    found = directory / "bin" / "python"
    stamp = directory / "installed"
    wanted = "\n".join([*PEERS, SIIRL, *SIIRL_NEEDS])
    if stamp.exists() and stamp.read_text() == wanted:
        return found
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(found)]
    subprocess.run([*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(directory)], check=True)
    subprocess.run([*install, *PEERS, *SIIRL_NEEDS], check=True)
    subprocess.run([*install, "--no-deps", SIIRL], check=True)
    stamp.write_text(wanted)
    return found


def run(script: str, *arguments: str, with_ours: bool = False) -> None:
    """Run a script of this folder in the venv, with our packages only if asked; its warnings go to nowhere."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    if with_ours:
        environment["PYTHONPATH"] = os.pathsep.join(str(_ROOT / folder) for folder in ("worker", "crds"))
    command = [str(python()), str(_HERE / script), *arguments]
    with tempfile.TemporaryDirectory() as directory:  # siiRL writes logs to where it runs
        done = subprocess.run(command, env=environment, cwd=directory, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{script} failed in the peers' venv:\n{done.stderr[-4000:]}")
