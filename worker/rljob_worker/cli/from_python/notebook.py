"""A run in the output of a notebook's cell: the table of the terminal, redrawn as steps end."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console

from rljob_api.planning.plan import Plan
from rljob_worker.cli.views.live import picture
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.rundir.directory import RunDirectory, RunNote
from rljob_worker.supervision.record import View

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

WIDTH = 120
"""Characters of a line: a cell of a notebook is about as wide."""
_PRE = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'


def in_notebook() -> bool:
    """Whether a kernel runs this program, whose cells take what is drawn again. Nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookView:
    """Draws each phase and step into the cell; what is said goes to another view."""

    def __init__(self, directory: RunDirectory, plan: Plan, other: View) -> None:
        self._tail, self._other = MetricsTail(directory.metrics), other
        self._total_steps, self._stages = plan.spec.stop.steps, tuple(stage.name for stage in plan.stages)
        self._note: RunNote | None = None
        self._moved_seconds = time.monotonic()
        self._cell: DisplayHandle | None = None

    def note(self, note: RunNote) -> None:
        self._note = note
        self._other.note(note)
        self._tail.poll()
        self._draw(note)

    def say(self, text: str) -> None:
        self._other.say(text)

    def tick(self) -> None:
        self._other.tick()
        if self._tail.poll() and self._note is not None:
            self._moved_seconds = time.monotonic()
            self._draw(self._note)

    def _draw(self, note: RunNote) -> None:
        from IPython.display import display

        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        progress = RunProgress(self._tail.records, self._total_steps, self._stages)
        console.print(picture(note, progress, time.monotonic() - self._moved_seconds))
        shown = {
            "text/html": console.export_html(inline_styles=True, code_format=_PRE, clear=False),
            "text/plain": console.export_text(),
        }
        if self._cell is None:
            self._cell = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._cell.update(shown, raw=True)  # type: ignore[no-untyped-call]
