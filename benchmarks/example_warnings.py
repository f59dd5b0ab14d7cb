"""What examples are warned of over three seeds, which is nothing: they learn.

    python benchmarks/example_warnings.py                        # about two hours on 2 cores
    python benchmarks/example_warnings.py reach-state --seeds 1  # one run

Makes what the first lines of an example say, and prints a line for each run. Exits with 1 when one is warned of.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import yaml

from rljob_worker.metrics.health import health_of, reward_weights

EXAMPLES = Path(__file__).parents[1] / "examples"
_COMMAND = re.compile(r"^#   python -m (.*?)(?:  .*)?$", re.MULTILINE)
"""In an example's first lines: what makes its model and data, and a remark."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", help="names; unset: all that say how their models are made")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/warnings"), help="models, data and run directories")
    options = parser.parse_args()
    folder = options.out.resolve()
    shutil.copytree(EXAMPLES, folder / "examples", dirs_exist_ok=True)
    names = options.examples or [path.stem for path in sorted(EXAMPLES.glob("*.yaml")) if commands_of(path)]
    runs = [(name, seed) for name in names for seed in range(options.seeds)]
    print(f"{'example':31} {'seed':>4} {'seconds':>8}  warnings")
    return 1 if any([warned(folder, name, seed) for name, seed in runs]) else 0


def commands_of(example: Path) -> list[list[str]]:
    """Arguments of Python that make an example's model and data."""
    return [shlex.split(match) for match in _COMMAND.findall(example.read_text())]


def warned(folder: Path, name: str, seed: int) -> list[str]:
    """Run one example from one seed; a line for each warning of it."""
    example = folder / "examples" / f"{name}.yaml"
    for command in commands_of(example):
        make(tuple(command), folder)
    run_name, started = f"{name}-{seed}", time.monotonic()
    settings = ("--set", f"seed={seed}", "--set", f"metadata.name={run_name}")
    run(["-m", "rljob_worker.cli", "run", str(example), "--runs-dir", str(folder), *settings], folder)
    records = [json.loads(line) for line in (folder / run_name / "metrics.jsonl").read_text().splitlines()]
    result = health_of(records, reward_weights(yaml.safe_load(example.read_text())["spec"]))
    print(f"{name:31} {seed:4} {time.monotonic() - started:8.0f}  {'; '.join(result) or 'none'}", flush=True)
    return result


@cache
def make(command: tuple[str, ...], folder: Path) -> None:
    run(["-m", *command], folder)


def run(arguments: list[str], folder: Path) -> None:
    with (folder / "warnings.log").open("a") as log:
        subprocess.run([sys.executable, *arguments], cwd=folder, check=True, stdout=log, stderr=log)


if __name__ == "__main__":
    sys.exit(main())
