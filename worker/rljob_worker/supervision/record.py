"""Notifications of a run: to those who watch it, in its note, and in its diary."""

import time
from dataclasses import replace
from typing import Protocol

from rljob_worker.rundir.directory import RunDirectory, RunNote


class View(Protocol):
    """What a person sees of a run."""

    def note(self, note: RunNote) -> None:
        """The phase or the attempt changed."""

    def say(self, text: str) -> None:
        """Something happened that a person should know."""

    def tick(self) -> None:
        """Called a few times a second."""


class RunRecord:
    """Keeps the note and the diary of a run, and tells a view of both."""

    def __init__(self, directory: RunDirectory, note: RunNote, view: View) -> None:
        self.note = note
        self._directory = directory
        self._view = view

    def change(self, **changes: object) -> None:
        """The note changes so, and a phase that begins is written down."""
        self.note = replace(self.note, updated_seconds=time.time(), **changes)  # type: ignore[arg-type]
        self._directory.write(self._directory.note, self.note.to_json())
        self._view.note(self.note)
        if "phase" in changes:
            self._log_phase()

    def fail(self, exit_code: int, cause: str) -> None:
        """Record how a run ended that raised; the view, which may have done so, is not called again."""
        self.note = replace(self.note, updated_seconds=time.time(), phase="Failed", exit_code=exit_code, cause=cause)
        self._directory.write(self._directory.note, self.note.to_json())
        self._log_phase()

    def say(self, text: str) -> None:
        """To the view, and to the diary for those who were not there."""
        self._view.say(text)
        self._log(text)

    def _log_phase(self) -> None:
        note = self.note
        ended = f", exit code {note.exit_code}: {note.cause}" if note.exit_code is not None else ""
        self._log(f"{note.phase}, attempt {note.attempt}{ended}")

    def _log(self, text: str) -> None:
        with self._directory.supervisor_log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
