"""`python simulate.py NAME ARGUMENTS STEPS`: plays an adapter in an interpreter that has its package, twice from one
seed and once from another, and prints what it saw as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

from rljob_worker.embodied import adapters
from rljob_worker.embodied.simulators.environment import SimulatedEnvironment
from rljob_worker.embodied.simulators.settings import Frame, SimulatorSettings


def main() -> None:
    name, arguments, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    positional, options = arguments
    cameras = tuple(options.get("cameras", ()))
    settings = SimulatorSettings(name, {}, cameras=cameras, stops_at_success=False)
    simulator = SimulatedEnvironment(getattr(adapters, name)(*positional, **options), settings)
    size = len(simulator.bounds.low)

    def played(seed: int) -> tuple[Frame, Frame]:
        first = simulator.reset(seed, {})
        actions = np.random.default_rng(0).uniform(-1, 1, (steps, size))
        return first, simulator.step(actions)

    runs = [played(seed) for seed in (1, 1, 2)]
    first, last = runs[0]
    assert last.state is not None
    report = {
        "digests": [item.digest for item in (run[1] for run in runs)],
        "firsts": [run[0].digest for run in runs],
        "state": last.state.shape,
        "pictures": [len(item) for item in last.pictures],
        "successes": last.successes,
        "tasks": simulator.tasks(),
        "dimensions": size,
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
