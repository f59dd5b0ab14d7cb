"""What would end the job, found by its first pod before any worker imports torch."""

import signal
import subprocess
import sys
from collections.abc import Mapping

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import BadData, InvalidJob, RLJobError
from rljob_worker.launcher.pod import PodIdentity
from rljob_worker.process.lifeline import dying_with_me

ENDS: dict[int, type[RLJobError]] = {int(ExitCode.INVALID_JOB): InvalidJob, int(ExitCode.BAD_DATA): BadData}
"""Codes by which a rehearsal ends the job; one that fails in another way has found nothing."""


def rehearse_once(pod: PodIdentity, environment: Mapping[str, str]) -> None:
    """In a process of its own, for a launcher stays light: by host 0 of each group at the job's first attempt, unless
    who started the pods has done it. Raises InvalidJob, BadData."""
    if pod.host or pod.attempt > 1 or environment.get(keys.ENV_REHEARSED):
        return
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rljob_worker.rehearsal"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dying_with_me(signal.SIGKILL),
    )
    if done.returncode in ENDS:
        raise ENDS[done.returncode](done.stdout.strip())
