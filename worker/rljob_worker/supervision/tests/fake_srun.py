"""A Slurm of network namespaces: `srun [OPTIONS] COMMAND...` starts the command on every node, and sends its own
SIGTERM to every process of the step; `scontrol` writes down what it was asked.

FAKE_SLURM_NODES: the namespaces, in the order of SLURM_JOB_NODELIST. FAKE_SLURM_LOG: a file for scontrol.
"""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path


def install(folder):
    """`srun` and `scontrol` in a folder for PATH."""
    folder.mkdir()
    for name in ("srun", "scontrol"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


def srun(arguments):
    command = arguments[next(index for index, item in enumerate(arguments) if not item.startswith("-")) :]
    nodes = os.environ["FAKE_SLURM_NODES"].split(",")
    step = {"SLURM_NTASKS": str(len(nodes))}
    tasks = [
        subprocess.Popen(
            ["ip", "netns", "exec", node, *command],
            env={**os.environ, **step, "SLURM_PROCID": str(number)},
            start_new_session=True,
        )
        for number, node in enumerate(nodes)
    ]
    signal.signal(signal.SIGTERM, lambda *_: signal_step(os.environ["RLJOB_TEST_MARK"]))
    return max(task.wait() for task in tasks)


def signal_step(mark):
    """Everybody in it: launchers, data buffers, workers; not Slurm itself."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()) and is_of(entry, mark):
            os.kill(int(entry.name), signal.SIGTERM)


def is_of(entry, mark):
    try:
        return f"RLJOB_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def main(name, *arguments):
    if name == "srun":
        return srun(arguments)
    with open(os.environ["FAKE_SLURM_LOG"], "a") as file:
        file.write(" ".join(arguments) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
