"""How soon a person is answered: `rljob --help`, the rehearsal of a job, Ctrl-C at any moment of a start.

    python benchmarks/response_times.py                 the median of five; --times 1 tries it

On an idle machine: --help within 0.4 s, the rehearsal within 3 s, Ctrl-C within 2 s.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

RLJOB = (sys.executable, "-P", "-m", "rljob_worker.cli")
MOMENTS_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0)
"""After the start of `rljob run`: imports, rehearsal, data buffers, workers that import, models, the first step."""


def seconds_of(*arguments: str, folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run([*RLJOB, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def interrupted(after_seconds: float, folder: Path) -> tuple[float, int]:
    """Seconds from Ctrl-C to the end, and the exit code."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    command = [*RLJOB, "run", "arithmetic-grpo.yaml", "--set", "stop.steps=1000"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(after_seconds)
        began = time.perf_counter()
        os.kill(process.pid, signal.SIGINT)
        code = process.wait()
        return time.perf_counter() - began, code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    times = range(parser.parse_args().times)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run([*RLJOB, "new", "--example", "arithmetic-grpo"], cwd=folder, check=True)
        print(f"rljob --help     {median(seconds_of('--help', folder=folder) for _ in times):.2f} s")
        validate = ("validate", "arithmetic-grpo.yaml")
        print(f"rehearsal        {median(seconds_of(*validate, folder=folder) for _ in times):.2f} s")
        for moment in MOMENTS_SECONDS:
            result = [interrupted(moment, folder) for _ in times]
            codes = sorted({code for _, code in result})
            print(
                f"Ctrl-C at {moment:4.1f} s  {max(seconds for seconds, _ in result):.2f} s at most, exit codes {codes}"
            )


if __name__ == "__main__":
    main()
