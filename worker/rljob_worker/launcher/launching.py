"""A launcher from start to end: who it is, its workers, their end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import BadData, InvalidJob, RLJobError
from rljob_worker.forkserver.environment import are_forked, server_environment
from rljob_worker.forkserver.forking import take_environment
from rljob_worker.forkserver.preloading import preload
from rljob_worker.launcher.children import PodLaunch, WorkerProcess, start_workers, worker_environment
from rljob_worker.launcher.endpoint import Endpoint
from rljob_worker.launcher.pod import PodIdentity, pod_from
from rljob_worker.launcher.pod_exit import Exit, first_cause
from rljob_worker.launcher.pod_state import PodState
from rljob_worker.launcher.rank_table import await_rank_table
from rljob_worker.launcher.watchdog import HEARD, WorkerWatchdog
from rljob_worker.process.last_words import LastWords, read_last_words, termination_log
from rljob_worker.process.lifeline import dying_with_me, lifeline_fd
from rljob_worker.process.signal_pipe import SignalPipe

ENDS: dict[int, type[RLJobError]] = {int(ExitCode.INVALID_JOB): InvalidJob, int(ExitCode.BAD_DATA): BadData}
"""Codes by which a rehearsal ends the job; one that fails in another way has found nothing."""


def main(arguments: Sequence[str]) -> int:
    """Exit with the code of the worker that explains the end."""
    command = arguments[1:] if arguments[:1] == ["--"] else None
    try:
        pod = pod_from(os.environ)
        await_rank_table(os.environ)
        if command is None:
            rehearse_once(pod, os.environ)
        return run_pod(pod, command)
    except RLJobError as error:
        print(f"launcher: {error}", file=sys.stderr)
        write_termination_log(LastWords(int(error.exit_code), cause=str(error)))
        return int(error.exit_code)


def rehearse_once(pod: PodIdentity, environment: Mapping[str, str]) -> None:
    """Find what would end the job before any worker imports torch: by host 0 of each group at the job's first attempt,
    in a process of its own, unless who started the pods has done it. Raises InvalidJob, BadData."""
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


def run_pod(pod: PodIdentity, command: Sequence[str] | None) -> int:
    """Start the workers, serve their metrics, wait; returns the pod's exit code. `command`: in place of the workers."""
    own, lifeline = dict(os.environ), lifeline_fd()
    pod_state = PodState(pod.attempt, pod.num_workers)
    with SignalPipe(HEARD) as signals, _words_directory(pod) as words_dir:
        drop: list[Callable[[], object]] = [signals.close]
        if lifeline is not None:
            drop.append(partial(os.close, lifeline))
        forks = command is None and are_forked(pod.device, own) and _can_be_forked(pod, own)
        # workers first: a fork next to the endpoint's threads could inherit a held lock
        workers = start_workers(PodLaunch(pod, worker_environment(own), command, words_dir, forks, drop))
        watch = WorkerWatchdog(workers, signals, pod_state, lifeline)
        with contextlib.closing(Endpoint(pod_state, pod.metrics_port)) as endpoint:
            print(json.dumps({"ready": "launcher", "metricsPort": endpoint.port}), flush=True)
            code = watch.until_the_end()
        write_termination_log(pod_words(code, watch.exits, workers))
    return code


def _can_be_forked(pod: PodIdentity, own: Mapping[str, str]) -> bool:
    """Import what workers need, unless this process is a fork of one that has."""
    take_environment(server_environment(own))
    refusal = preload(pod.preload)
    if refusal is not None:
        print(f"launcher: workers import for themselves: {refusal}", file=sys.stderr, flush=True)
    return refusal is None


@contextlib.contextmanager
def _words_directory(pod: PodIdentity) -> Iterator[Path]:
    """Where workers leave their last words: next to their logs, or in a directory of this pod's own."""
    if pod.log_dir is not None:
        yield pod.log_dir
    else:
        with tempfile.TemporaryDirectory(prefix="rljob-launcher-") as directory:
            yield Path(directory)


def pod_words(code: int, exits: Sequence[Exit], workers: Sequence[WorkerProcess]) -> LastWords:
    """The last words of the worker that explains `code`, or what is known of it when it left none."""
    cause = first_cause(exits)
    by_name = {child.name: child for child in workers}
    name = cause.name if cause else workers[0].name
    words = read_last_words(by_name[name].last_words)
    if words is None:
        signame = f" (killed by {signal.Signals(code - 128).name})" if 128 < code < 128 + signal.NSIG else ""
        return LastWords(code, cause=f"ended with exit code {code}{signame}, no last words", worker=name)
    return LastWords(code, words.step, words.checkpoint, words.cause, worker=name)


def write_termination_log(words: LastWords) -> None:
    """Write the pod's last words where Kubernetes or the supervisor reads them; a full disk leaves the exit code."""
    path = termination_log()
    if path:
        with contextlib.suppress(OSError):
            path.write_text(words.to_json())
