"""A launcher from its first to its last deed: who it is, its workers, their end."""

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rljob_worker.errors import RLJobError
from rljob_worker.forkserver.client import open_fork_server
from rljob_worker.forkserver.environment import are_forked
from rljob_worker.last_words import LastWords, read_last_words, termination_log
from rljob_worker.launcher.board import Board
from rljob_worker.launcher.children import Child, start_worker
from rljob_worker.launcher.dress_rehearsal import rehearse_once
from rljob_worker.launcher.endpoint import Endpoint
from rljob_worker.launcher.pod import Pod, environment, pod_from
from rljob_worker.launcher.rank_table import await_rank_table
from rljob_worker.launcher.verdict import Exit, first_cause
from rljob_worker.launcher.watch import Watch
from rljob_worker.process.lifeline import lifeline_fd


def main(arguments: Sequence[str]) -> int:
    """Exit with the code of the worker that explains the end."""
    command = arguments[1:] if arguments[:1] == ["--"] else None
    try:
        pod = pod_from(environment())
        await_rank_table(environment())
        if command is None:
            rehearse_once(pod, environment())
        return launch(pod, command)
    except RLJobError as error:
        print(f"launcher: {error}", file=sys.stderr)
        leave(LastWords(int(error.exit_code), cause=str(error)))
        return int(error.exit_code)


def launch(pod: Pod, command: Sequence[str] | None) -> int:
    """Start the workers, serve their metrics, wait; returns the pod's exit code. `command`: in place of the workers."""
    board = Board(pod.attempt, pod.num_workers)
    # the server first: a fork beside the endpoint's threads could inherit a held lock
    forked = command is None and are_forked(pod.device, environment())
    server = open_fork_server(environment(), pod.preload if forked else ())
    with contextlib.closing(server), _words_directory(pod) as words_dir:
        children = [start_worker(server, pod, n, command, words_dir) for n in range(pod.num_workers)]
        watch = Watch(children, server, board, lifeline_fd())
        with contextlib.closing(Endpoint(board, pod.metrics_port)) as endpoint:
            print(json.dumps({"ready": "launcher", "metricsPort": endpoint.port}), flush=True)
            code = watch.until_the_end()
        leave(pod_words(code, watch.exits, children))
    return code


@contextlib.contextmanager
def _words_directory(pod: Pod) -> Iterator[Path]:
    """Where workers leave their last words: beside their logs, or in a directory of this pod's own."""
    if pod.log_dir is not None:
        yield pod.log_dir
    else:
        with tempfile.TemporaryDirectory(prefix="rljob-launcher-") as directory:
            yield Path(directory)


def pod_words(code: int, exits: Sequence[Exit], children: Sequence[Child]) -> LastWords:
    """The last words of the worker that explains `code`, or what is known of it when it left none."""
    cause = first_cause(exits)
    by_name = {child.name: child for child in children}
    name = cause.name if cause else children[0].name
    words = read_last_words(by_name[name].last_words)
    if words is None:
        signame = f" (killed by {signal.Signals(code - 128).name})" if 128 < code < 128 + signal.NSIG else ""
        return LastWords(code, cause=f"ended with exit code {code}{signame}, no last words", worker=name)
    return LastWords(code, words.step, words.checkpoint, words.cause, worker=name)


def leave(words: LastWords) -> None:
    """Write the pod's last words where Kubernetes or the supervisor reads them; a full disk leaves the exit code."""
    path = termination_log()
    if path:
        with contextlib.suppress(OSError):
            path.write_text(words.to_json())
