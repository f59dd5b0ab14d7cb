"""Three generators, one of which is killed every minute: what that costs, and that it changes nothing.

    python benchmarks/killed_guests.py [--minutes 5] [--every 60]

Two runs of one job side by side, real processes on a tiny model: in one of them a generator is killed (SIGKILL to its
worker and its data buffer) every EVERY seconds and started again at once. A lease takes LEASE_SECONDS or a little more,
whatever else the machine does: the reward of one of its rows sleeps. So generators are what training waits for. A
group that is missing, or there twice, would change the result.

Capacity lost is the time from a kill until that generator has its first lease again, of all time of three generators;
throughput lost is the time that as many steps took longer, of that time. Ends with 1 for a result that differs, a
trainer that ended, or a loss of more than 1.3 times the capacity.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_worker.tests.elastic_run import ElasticRun, elastic_run
from rljob_worker.tests.jobs import CPU, make_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_resume import checkpoint_digest
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

GUESTS, GROUPS, MEMBERS = 3, 6, 4
LEASE_SECONDS = 2.5
MOST_LOST = 1.3
REWARD = f"""
import os, time
from pathlib import Path

FOLDER, GUEST = Path(__file__).parent, os.environ["RLJOB_HOST_INDEX"]


def paced(row):
    if row["row_id"] % {MEMBERS} == 0:
        (FOLDER / f"lease-{{GUEST}}-{{os.getppid()}}").touch()
        time.sleep({LEASE_SECONDS})
    return len(set(row["response"])) / max(1, len(row["response"]))
"""
BY_PLACE = ("data/", "time/", "generators/", "leases/")


@dataclass
class Figures:
    """What came of one run."""

    seconds: float
    """From the first step to the last."""
    learnt: Any
    lost_seconds: float = 0.0
    num_kills: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=60.0)
    asked = parser.parse_args()
    num_steps = 1 + round(asked.minutes * 60 / (LEASE_SECONDS * GROUPS / GUESTS))
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:
        tiny = Path(place) / "tiny"
        make_model(quick(0), tiny)
        begun = [pool.submit(figures, tiny, Path(place) / f"{every}", num_steps, every) for every in (0.0, asked.every)]
        undisturbed, killed = (run.result() for run in begun)
    lost = 1 - undisturbed.seconds / killed.seconds
    capacity = killed.lost_seconds / (GUESTS * killed.seconds)
    is_equal = undisturbed.learnt == killed.learnt
    print(f"{num_steps} steps in {undisturbed.seconds:.0f} s, with {killed.num_kills} kills in {killed.seconds:.0f} s")
    print(f"capacity lost {capacity:.3f}, throughput lost {lost:.3f}: {lost / max(capacity, 1e-9):.2f} times")
    print(f"checkpoint, metrics and samples are equal: {is_equal}")
    return 0 if is_equal and lost <= MOST_LOST * capacity else 1


def elastic_job(tiny: Path, num_steps: int) -> dict[str, Any]:
    """One trainer, leases of one group."""
    job = make_job(
        tiny,
        workerGroups=[
            {"name": "rollout", "accelerator": CPU, "elastic": {"min": 1, "max": GUESTS}},
            {"name": "train", "accelerator": CPU},
        ],
        rollout={"maxResponseTokens": 8, "maxStaleness": 1, "leaseRows": MEMBERS},
        rewards=[{"name": "paced", "run": "paced:paced", "timeoutSeconds": 600}],
        algorithm={"name": "GRPO", "groupSize": MEMBERS, "kl": {"coefficient": 0.0}},
        checkpoint={"everySteps": num_steps},
        stop={"steps": num_steps},
    )
    job["spec"]["data"] |= {"batchSize": GROUPS}
    del job["spec"]["data"]["validation"]
    return job


def figures(tiny: Path, folder: Path, num_steps: int, every: float) -> Figures:
    """One run to its end. every: seconds between kills; 0 for none."""
    folder.mkdir()
    (folder / "paced.py").write_text(REWARD)
    with elastic_run(elastic_job(tiny, num_steps), folder) as run:
        for number in range(GUESTS):
            run.guest(number)
        run.wait_for_step(1)
        started, result = time.monotonic(), Figures(0.0, None)
        while not is_over(run, num_steps):
            is_due = every and time.monotonic() - started >= every * (result.num_kills + 1)
            if is_due:
                kill_one(run, result.num_kills % GUESTS, num_steps, result)
            time.sleep(0.1)
        result.seconds = time.monotonic() - started
        ended = run.finished()
        assert ended.code == 0, run.logs
        samples = sorted((run.directory / "samples.jsonl").read_text().splitlines())
        result.learnt = checkpoint_digest(run.directory), without_times(ended.metrics, *BY_PLACE), samples
    return result


def is_over(run: ElasticRun, num_steps: int) -> bool:
    assert all(pod.worker is not None and pod.worker.poll() in (None, 0) for pod in run.gang), run.logs
    return run.steps() >= num_steps


def kill_one(run: ElasticRun, number: int, num_steps: int, result: Figures) -> None:
    """Kill a generator, start it again, and wait until it has a lease."""
    before, killed = leases(run, number), time.monotonic()
    run.kill(number)
    run.guest(number)
    while leases(run, number) == before and not is_over(run, num_steps):
        time.sleep(0.1)
    result.num_kills += 1
    result.lost_seconds += time.monotonic() - killed


def leases(run: ElasticRun, number: int) -> set[str]:
    """Files that each life of a generator leaves with its first lease."""
    return {path.name for path in run.folder.glob(f"lease-{number}-*")}


if __name__ == "__main__":
    sys.exit(main())
