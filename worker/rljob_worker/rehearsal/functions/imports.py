"""The user's functions, imported in a process of their own while other things are looked at; rewards tried there."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence

from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.functions.importing_process import ImportingProcess
from rljob_worker.rehearsal.functions.reference import FunctionReference, RewardTrial
from rljob_worker.rewards.evaluate import Outcome

IMPORT_SECONDS = 120.0
"""How long one process may import; the first import of a large library from network storage is slow."""

GRACE_SECONDS = 1.0
"""Beyond the limit of a call, for what is around it."""
TRIAL_SECONDS = 10.0
"""How long the rows of one reward may take: a slow one is no mistake, and a job is not kept waiting for it."""


class Imports:
    """Begun by the constructor; `findings` waits."""

    def __init__(
        self,
        references: Sequence[FunctionReference],
        environment: Mapping[str, str],
        limit_seconds: float = IMPORT_SECONDS,
    ) -> None:
        self._environment, self._limit_seconds = environment, limit_seconds
        self._waiting = list(references)
        self.lacking = list[Finding]()
        """What `findings` found that another machine may have."""
        self.outcomes = dict[str, list[Outcome]]()
        """By path, those of each reward that `findings` tried: of its rows, up to one that does not answer."""
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-")
        self._process = self._start() if references else None

    def findings(self, trials: Mapping[str, RewardTrial] | None = None) -> list[Finding]:
        """One for each function that cannot be called. What ends or outlasts the process is named, and the functions
        after it get another process. trials: rewards that are tried if they can be called, by path."""
        result = list[Finding]()
        while self._process is not None:
            asked, answers = self._group(), self._answers(self._process)
            self._waiting = self._waiting[len(answers) :]
            for reference, answer in zip(asked, answers, strict=False):
                if answer is not None:
                    path, why, is_of_machine = answer
                    (self.lacking if is_of_machine else result).append(_finding(reference, path, why))
            if len(answers) < len(asked):
                result.append(self._ended(self._process, self._waiting.pop(0)))
            else:
                callable_ = [item.path for item, why in zip(asked, answers, strict=True) if why is None]
                self._try({path: trial for path, trial in (trials or {}).items() if path in callable_}, self._process)
            self._process.close()
            self._process = self._start() if self._waiting else None
        return result

    def close(self) -> None:
        """End what still imports, with everything it started."""
        if self._process is not None:
            self._process.close()
            self._process = None
        self._folder.cleanup()

    def _start(self) -> ImportingProcess:
        """A process that imports what is waiting."""
        message = json.dumps({"references": self._group(), "folder": os.path.realpath(self._folder.name)})
        return ImportingProcess(message.encode(), self._environment)

    def _group(self) -> list[FunctionReference]:
        """What one process imports: the first of those that wait, and those behind it with the same confinement."""
        confinement = self._waiting[0].confinement
        return list(itertools.takewhile(lambda reference: reference.confinement == confinement, self._waiting))

    def _answers(self, process: ImportingProcess) -> list[tuple[str, str, bool] | None]:
        """What was said of the first of those that wait."""
        deadline = time.monotonic() + self._limit_seconds
        lines = iter(lambda: process.line(deadline - time.monotonic()), None)
        return [json.loads(line) for line in itertools.islice(lines, len(self._group()))]

    def _ended(self, process: ImportingProcess, blamed: FunctionReference) -> Finding:
        """The finding on the function that an import did not get past."""
        late = f"it took longer than {self._limit_seconds:g} s"
        ending = late if process.is_running else f"the import {process.ending}"
        return _finding(blamed, blamed.path, f"{blamed.owner}: {blamed.run} cannot be imported: {ending}")

    def _try(self, trials: Mapping[str, RewardTrial], process: ImportingProcess) -> None:
        """One reward after the other, up to one that does not answer; of that, the rows there was time for."""
        for path, trial in trials.items():
            process.ask(json.dumps(trial).encode())
            outcomes: list[Outcome] = []
            self.outcomes[path] = outcomes
            deadline, limit_seconds = time.monotonic() + TRIAL_SECONDS, trial.limit_seconds + GRACE_SECONDS
            for _ in trial.rows:
                left = deadline - time.monotonic()
                line = process.line(min(limit_seconds, left))
                if line is None:
                    if not process.is_running:
                        outcomes.append({"problem": process.ending})
                    elif limit_seconds <= left:
                        outcomes.append({"timeout": True})
                    return
                outcomes.append(json.loads(line))


def _finding(reference: FunctionReference, path: str, why: str) -> Finding:
    """path: of the field that is to blame."""
    result = reference.run if path == reference.path else json.dumps(reference.options)
    message, _, fix = why.partition("; ")
    fix = f"{fix[:1].upper()}{fix[1:]}." if fix else "Correct it, or the path in the job."
    return Finding(Problem(path, result, message, fix))
