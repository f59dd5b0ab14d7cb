"""A launcher of a pod of NUM_WORKERS fake workers: `pod_process.py LOG_DIR NUM_WORKERS SCRIPT`."""

import sys
from pathlib import Path

from rljob_worker.launcher import watchdog
from rljob_worker.launcher.launching import run_pod
from rljob_worker.launcher.pod import PodIdentity
from rljob_worker.launcher.tests.quick_launcher import QUICK_SECONDS

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def main(log_dir: str, num_workers: str, script: str) -> int:
    pod = PodIdentity(
        group="train", host=0, num_workers=int(num_workers), attempt=1, log_dir=Path(log_dir), metrics_port=0
    )
    watchdog.SETTLE_SECONDS = watchdog.INTERRUPT_GRACE_SECONDS = QUICK_SECONDS
    return run_pod(pod, [sys.executable, str(FAKE_WORKER), script])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
