"""`Problem`: one mistake in a job, and `InvalidJobError`, which carries all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rljob_api.vocabulary.exit_codes import ExitCode


@dataclass(frozen=True)
class Problem:
    """What is wrong, where, what stands there, and what to write in its place."""

    path: str
    """Where: `spec.dag.stages[2].after[0]`; empty for the document as a whole."""
    found: str
    """What stands there, as YAML; empty when nothing does."""
    message: str
    fix: str
    line: int | None = None
    """Line of the YAML, from 1, when it is known."""
    override: str | None = None
    """The `--set` that wrote what stands there, `stop.steps=many`, if one did."""

    @property
    def source(self) -> str:
        """Who wrote it: `line 12`, or the override; empty where that is not known."""
        if self.override is not None:
            return f"--set {self.override}"
        return "" if self.line is None else f"line {self.line}"

    def __str__(self) -> str:
        place = self.path or "document"
        if self.source:
            place += f" ({self.source})"
        result = f", found {self.found}" if self.found else ""
        return f"{place}: {self.message}{result}. {self.fix}"


class InvalidJobError(ValueError):
    """The job cannot run; `problems` holds every reason that was found."""

    def __init__(self, problems: Iterable[Problem], exit_code: ExitCode = ExitCode.INVALID_JOB) -> None:
        """exit_code: BAD_DATA where data and files of models alone are to blame."""
        self.problems = tuple(problems)
        self.exit_code = exit_code
        assert self.problems, "an invalid job has a problem"
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join((f"the job has {count}:", *(f"  {problem}" for problem in self.problems))))


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The spelling in `known` that `word` was probably meant to be."""
    lower = {item.lower(): item for item in known}
    match = get_close_matches(word.lower().replace("_", ""), lower, n=1, cutoff=0.6)
    return lower[match[0]] if match else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """One sentence: the nearest right spelling, or all of them."""
    names = sorted(set(known))
    if (match := nearest(word, names)) is not None:
        return f"Did you mean {match}?"
    if not names:
        return "There is none to choose from."
    return f"Known: {', '.join(names)}."
