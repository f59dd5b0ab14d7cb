"""A launcher of a pod of NUM_WORKERS fake workers: `pod_process.py LOG_DIR NUM_WORKERS SCRIPT`."""

import sys
from pathlib import Path

from rljob_worker.launcher import watch
from rljob_worker.launcher.launching import launch
from rljob_worker.launcher.pod import Pod
from rljob_worker.launcher.tests.quick_launcher import QUICK_SECONDS

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def main(log_dir: str, num_workers: str, script: str) -> int:
    pod = Pod(group="train", host=0, num_workers=int(num_workers), attempt=1, log_dir=Path(log_dir), metrics_port=0)
    watch.SETTLE_SECONDS = watch.INTERRUPT_GRACE_SECONDS = QUICK_SECONDS
    return launch(pod, [sys.executable, str(FAKE_WORKER), script])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
