"""Three generators, one of which is killed every minute: what that costs, and that it changes nothing.

    python benchmarks/killed_guests.py [--minutes 5] [--every 60]

Two runs of one job (`rljob run`) side by side, on a tiny model: in one of them a generator is killed (SIGKILL to its
data buffer, launcher and worker) every EVERY seconds, and the run starts it again. A lease takes LEASE_SECONDS or a
little more, whatever else the machine does: the reward of one of its rows sleeps. So generators are what training waits
for. A group that is missing, or there twice, would change the result.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_worker.tests.jobs import CPU, Run, kill_pod, make_job, started_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_resume import checkpoint_digest
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

GUESTS, GROUPS, MEMBERS = 3, 30, 4
LEASE_SECONDS = 1.0
"""A kill destroys half a lease on average: with 2.5 s, as long as a start takes, half as much again was lost."""
MOST_LOST = 1.3
REWARD = f"""
import os, time
from pathlib import Path

FOLDER, GUEST = Path(__file__).parent, os.environ.get("RLJOB_HOST_INDEX", "rehearsal")


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

    learnt: Any = None
    times: list[float] = field(default_factory=list)
    """When each step was written down."""
    lost_seconds: list[float] = field(default_factory=list)
    """From each kill until that generator had a lease again."""

    @property
    def seconds(self) -> float:
        """From the first step to the last."""
        return self.times[-1] - self.times[0]


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
    capacity = sum(killed.lost_seconds) / (GUESTS * killed.seconds)
    is_equal = undisturbed.learnt == killed.learnt
    away = ", ".join(f"{seconds:.1f}" for seconds in killed.lost_seconds)
    print(
        f"{num_steps} steps in {undisturbed.seconds:.0f} s, with {len(killed.lost_seconds)} kills in "
        f"{killed.seconds:.0f} s"
    )
    print(f"seconds from a kill to the next lease: {away}")
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
    result = Figures()
    with started_job(elastic_job(tiny, num_steps), folder, output=folder / "output.log") as (process, directory):
        killer = Killer(directory, folder, every, result)
        while process.poll() is None:
            num_done = len(lines(directory / "metrics.jsonl"))
            result.times += [time.monotonic()] * (num_done - len(result.times))
            if every and 0 < num_done < num_steps:
                killer.turn(time.monotonic())
            time.sleep(0.05)
    assert process.returncode == 0, (folder / "output.log").read_text()
    ended = Run(process.returncode, (folder / "output.log").read_text(), directory)
    assert "restart" not in ended.output, f"the gang began again:\n{ended.output}"
    result.learnt = checkpoint_digest(directory), without_times(ended.metrics, *BY_PLACE), samples(directory)
    return result


@dataclass
class Killer:
    """Kills one generator after another."""

    directory: Path
    folder: Path
    every: float
    result: Figures
    began: float | None = None
    num_kills: int = 0
    down: tuple[int, float, set[str]] | None = None
    """The one that was killed, when, and the lives of it that had a lease before."""

    def turn(self, now: float) -> None:
        """Kill the next one where that is due and the one before works again."""
        self.began = now if self.began is None else self.began
        if self.down is not None:
            number, killed, before = self.down
            if leases(self.folder, number) != before:
                self.result.lost_seconds.append(now - killed)
                self.down = None
        elif now - self.began >= self.every * (self.num_kills + 1):
            number = self.num_kills % GUESTS
            self.down = number, now, leases(self.folder, number)
            self.num_kills += 1
            kill_pod(self.directory, f"rollout-{number}")


def leases(folder: Path, number: int) -> set[str]:
    """Files that each life of a generator leaves with its first lease."""
    return {path.name for path in folder.glob(f"lease-{number}-*")}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def samples(directory: Path) -> list[str]:
    return sorted(lines(directory / "samples.jsonl"))


if __name__ == "__main__":
    sys.exit(main())
