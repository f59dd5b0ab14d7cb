"""Steps of a run for its trackers, in a process of its own, for libraries leave threads, processes and warnings behind.

python -m rljob_worker.metrics.trackers.tests.track RUN_DIR TRACKER FIRST LAST close|fail
"""

import sys
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.metrics.sink import RunFiles


def main(run_dir: Path, tracker: str, first: int, last: int, end: str) -> None:
    config = {"seed": 7, "algorithm": {"name": "GRPO", "loss": {"clipLow": 0.2}}, "rewards": [{"name": "correct"}]}
    wanted = ("Samples", "Files", "Checkpoints")
    files = RunFiles(run_dir, (tracker,), wanted, name="sums", config=config, failed_seconds=2 * TEST_TIMEOUT_SECONDS)
    files.cut_back(first - 1)
    for step in range(first, last + 1):
        samples = [
            {"row": step, "prompt": "2+2=", "response": "4", "rewards": {"correct": 1.0}},
            {"row": 1, "prompt": "1+1=", "response": "2", "reward": 1, "validation": True},
            {"row": 2, "prompt": "1+2=", "response": "4", "reward": 0.5, "validation": True},
        ]
        metrics = {"reward/mean": step / 10, "data/bytes_a->b": 5.0}
        files.write_step(
            step, metrics | dict.fromkeys(("validation/accuracy", "validation/accuracy/math"), 0.5), samples
        )
    checkpoint = run_dir / "checkpoints" / f"step-{last}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"12345678")
    files.write_checkpoint(checkpoint)
    getattr(files, end)()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
