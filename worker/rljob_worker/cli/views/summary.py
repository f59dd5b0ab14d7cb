"""What a person needs at the end of a run: what rose, what was best, where things are, what to do next. Pure."""

from pathlib import Path

from rljob_worker.cli.views.figures import duration, number
from rljob_worker.cli.views.misses import misses_of
from rljob_worker.local.watching.progress import Progress
from rljob_worker.rundir.directory import RunDirectory, RunNote
from rljob_worker.storage.place import Place

WINDOW = 10
"""Steps averaged at either end of a run: single steps are noisy."""


def summary(note: RunNote, progress: Progress, directory: RunDirectory, steps: list[int], command: str) -> str:
    """Several lines; `steps` are those of committed checkpoints, `command` is what began the run."""
    took = duration(note.updated_seconds - note.started_seconds)
    lines = [f"{note.name}: {note.phase.lower()} after {progress.step} of {note.total_steps} steps, in {took}"]
    lines += _rises(progress)
    lines += [f"  {'missed':<11} {miss}" for miss in misses_of(progress.records)]
    lines += _places(directory, steps)
    lines += _next_steps(note, directory, steps, command)
    return "\n".join(lines)


def _rises(progress: Progress) -> list[str]:
    lines = []
    window = min(WINDOW, max(1, progress.step // 2))
    first, last = progress.mean_of_first("reward/mean", window), progress.mean_of_last("reward/mean", window)
    best = progress.best("reward/mean")
    if first is not None and best is not None:
        averaged = f" (mean of {window} steps)" if window > 1 else ""
        lines.append(
            f"  reward      {number(first)} -> {number(last)}{averaged}, best {number(best[1])} at step {best[0]}"
        )
    best = progress.best("validation/accuracy")
    if best is not None:
        first, last = progress.first("validation/accuracy"), progress.latest("validation/accuracy")
        lines.append(f"  validation  {number(first)} -> {number(last)}, best {number(best[1])} at step {best[0]}")
    return lines


def _places(directory: RunDirectory, steps: list[int]) -> list[str]:
    found = [
        ("metrics", directory.metrics),
        ("samples", directory.samples),
        ("report", directory.report),
        ("logs", directory.path / "logs"),
    ]
    lines = [f"  {name:<11} {shortest(path)}" for name, path in found if path.exists()]
    if steps:
        listed = ", ".join(map(str, steps))
        lines.append(f"  {'checkpoints':<11} {shortest(directory.checkpoints)} (steps {listed})")
    if (directory.path / "tensorboard").exists():
        lines.append(f"  {'charts':<11} tensorboard --logdir {shortest(directory.path / 'tensorboard')}")
    return lines


def _next_steps(note: RunNote, directory: RunDirectory, steps: list[int], command: str) -> list[str]:
    lines = []
    if steps:
        lines.append(f"  {'export':<11} rljob export {shortest(directory.path)} {note.name}-model")
    if note.phase == "Stopped" or (note.phase == "Failed" and steps):
        lines.append(f"  {'go on':<11} {command}")
    return lines


def shortest(place: Place) -> str:
    """Relative to the current directory if it is below it."""
    here = Path.cwd()
    return str(place.relative_to(here)) if isinstance(place, Path) and place.is_relative_to(here) else str(place)
