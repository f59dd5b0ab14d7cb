"""The user's functions, imported in a process of their own while other things are looked at."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

from rljob_api.vocabulary.problem import Problem
from rljob_worker.process.child import exit_code
from rljob_worker.process.lifeline import dying_with_me
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.functions.reference import FunctionReference

IMPORT_SECONDS = 120.0
"""How long one process may import; the first import of a large library from network storage is slow."""


class Imports:
    """Begun by the constructor; `findings` waits."""

    def __init__(
        self,
        references: Sequence[FunctionReference],
        environment: Mapping[str, str],
        limit_seconds: float = IMPORT_SECONDS,
    ) -> None:
        self.environment, self._limit_seconds = environment, limit_seconds
        self._waiting = list(references)
        self.lacking = list[Finding]()
        """What `findings` found that another machine may have."""
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-")
        self._process = self.start() if references else None

    @property
    def waiting(self) -> list[FunctionReference]:
        """What one process imports: the first of those that wait, and those behind it with the same confinement."""
        confinement = self._waiting[0].confinement
        return list(itertools.takewhile(lambda reference: reference.confinement == confinement, self._waiting))

    @property
    def message(self) -> bytes:
        """What the process that imports them reads."""
        return json.dumps({"references": self.waiting, "folder": os.path.realpath(self._folder.name)}).encode()

    def findings(self) -> list[Finding]:
        """One for each function that cannot be called. What ends or outlasts the process is named, and the functions
        after it get another process."""
        result = list[Finding]()
        while self._process is not None:
            asked = self.waiting
            answers, ending = self._answers(self._process, len(asked))
            for reference, answer in zip(asked, answers, strict=False):
                if answer is not None:
                    path, why, is_of_machine = answer
                    (self.lacking if is_of_machine else result).append(_finding(reference, path, why))
            self._waiting = self._waiting[len(answers) :]
            if len(answers) < len(asked):
                blamed = self._waiting.pop(0)
                why = f"{blamed.owner}: {blamed.run} cannot be imported: {ending}"
                result.append(_finding(blamed, blamed.path, why))
            self._process = self.start() if self._waiting else None
        return result

    def close(self) -> None:
        """End what still imports, with everything it started."""
        if self._process is not None:
            self._end(self._process)
            self._process = None
        self._folder.cleanup()

    def start(self) -> subprocess.Popen[bytes]:
        """A process that imports what is waiting."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rljob_worker.rehearsal.functions.importing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self.message)
            process.stdin.close()
        return process

    def _answers(self, process: subprocess.Popen[bytes], number: int) -> tuple[list[tuple[str, str, bool] | None], str]:
        """What was said of the first of those that wait, and how the process ended."""
        lines = list(_lines(process, time.monotonic() + self._limit_seconds))
        is_late = process.poll() is None and len(lines) < number
        self._end(process)
        ending = f"it took longer than {self._limit_seconds:g} s" if is_late else _ending(process.returncode)
        return [json.loads(line) for line in lines], ending

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """Whole lines of its output until it ends or the deadline has passed."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                process.wait()
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def _ending(returncode: int) -> str:
    code = exit_code(returncode)
    how = f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
    return f"the import ended its process ({how})"


def _finding(reference: FunctionReference, path: str, why: str) -> Finding:
    """path: of the field that is to blame."""
    result = reference.run if path == reference.path else json.dumps(reference.options)
    message, _, fix = why.partition("; ")
    fix = f"{fix[:1].upper()}{fix[1:]}." if fix else "Correct it, or the path in the job."
    return Finding(Problem(path, result, message, fix))
