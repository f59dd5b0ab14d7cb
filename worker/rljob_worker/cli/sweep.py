"""`rljob sweep`: a job with several values of some fields, one run after the other, and a comparison of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import yaml

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.jobfile import JobFile, examine, open_job
from rljob_worker.cli.output import say
from rljob_worker.cli.report import finals_table
from rljob_worker.cli.run import LocalRun, all_of, command_line, of_this_machine, report_end, supervise, view_of
from rljob_worker.errors import InvalidJob
from rljob_worker.local.pods.pods import Commands
from rljob_worker.run_page.page import write_page

NAME_LENGTH = 40
"""Characters of a job's name, at most."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One of a sweep's runs."""

    name: str
    overrides: tuple[str, ...]
    """All of its `--set`, its name's included."""
    chosen: tuple[str, ...]
    """Those that differ between runs: `training.learningRate=1e-6`."""


def sweep_job(path: Path, overrides: Sequence[str], runs_dir: Path, commands: Commands | None = None) -> int:
    """Run all combinations to their ends; returns the exit code of the first run that failed, else 0.

    Each job is checked with its data and functions before the first one starts. A failed run, such as one that
    diverged, is a result, and the next one starts; Ctrl-C stops the sweep with the run that it stops, and the same
    command goes on there. Raises InvalidJob and InvalidJobError.
    """
    require_extra("worker", "rljob sweep")
    base = base_name(path, overrides)
    runs = sweep_runs(base, overrides)
    files = [open_job(path, run.overrides) for run in runs]
    for file in files:
        examine(file)[1].raise_found()
    codes, directories = list[int](), list[Path]()
    for run, file in zip(runs, files, strict=True):
        say(f"run {len(codes) + 1} of {len(runs)}, {run.name}: {', '.join(run.chosen)}")
        directory, code = _run(run, file, path, runs_dir, commands)
        codes.append(code)
        directories.append(directory)
        if code == ExitCode.STOPPED:
            break
    page = runs_dir / f"{base}-sweep.html"
    write_page(directories, page)
    say(f"{finals_table(directories)}\n  report      {page}")
    return next((code for code in codes if code), int(ExitCode.DONE))


def _run(run: SweepRun, file: JobFile, path: Path, runs_dir: Path, commands: Commands | None) -> tuple[Path, int]:
    """Its directory and exit code."""
    gangs = of_this_machine(file, commands or Commands())
    directory, note = supervise(LocalRun(file, runs_dir, None, view_of, all_of(file), gangs))
    return directory.path, report_end(directory, note, command_line("run", path, run.overrides, runs_dir))


def sweep_runs(base: str, overrides: Sequence[str]) -> list[SweepRun]:
    """All combinations of values, the last field's values following each other. Raises InvalidJob without a field that
    has several. base: the job's name, with which those of the runs begin."""
    listed = [values_of(override) for override in overrides]
    swept = [place for place, (_, values) in enumerate(listed) if len(values) > 1]
    if not swept:
        raise InvalidJob(
            "no --set of the sweep has several values; write them with commas: --set training.learningRate=1e-6,3e-6"
        )
    combinations = list(product(*(values for _, values in listed)))
    names = _names(base, [[values[place] for place in swept] for values in combinations])
    runs = []
    for name, values in zip(names, combinations, strict=True):
        written = [f"{field}={value}" for (field, _), value in zip(listed, values, strict=True)]
        chosen = tuple(written[place] for place in swept)
        runs.append(SweepRun(name, (*written, f"metadata.name={name}"), chosen))
    return runs


def values_of(override: str) -> tuple[str, list[str]]:
    """The field and its values as they are written; commas in brackets and quotes of YAML are parts of a value.

    >>> values_of("training.learningRate=1e-6,3e-6")
    ('training.learningRate', ['1e-6', '3e-6'])
    >>> values_of("models[0].adapter.targets=[q_proj, v_proj],[q_proj]")
    ('models[0].adapter.targets', ['[q_proj, v_proj]', '[q_proj]'])
    """
    field, _, text = override.partition("=")
    listed = f"[{text}]"
    try:
        node = yaml.compose(listed)
    except yaml.YAMLError:
        return field, [text]  # what is wrong with it is reported as that of any override
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        return field, [text]
    return field, [listed[item.start_mark.index : item.end_mark.index] for item in node.value]


def base_name(path: Path, overrides: Sequence[str]) -> str:
    """The job's name. Raises InvalidJob where that is swept over."""
    listed = [values_of(override) for override in overrides]
    if any(field == "metadata.name" and len(values) > 1 for field, values in listed):
        raise InvalidJob("a sweep names its runs; give metadata.name one value, with which their names begin")
    return open_job(path, [f"{field}={values[0]}" for field, values in listed]).job.name


def _names(base: str, chosen: Sequence[Sequence[str]]) -> list[str]:
    """`quickstart-1e-6`: by values, where such names are valid and no two are equal; else by numbers."""
    by_value = [f"{base}-{'-'.join(re.sub(r'[^a-z0-9]+', '-', value.lower()).strip('-') for value in values)}"
                for values in chosen]  # fmt: skip
    if len(set(by_value)) == len(by_value) and all(
        len(name) <= NAME_LENGTH and not name.endswith("-") for name in by_value
    ):
        return by_value
    width = NAME_LENGTH - len(str(len(chosen))) - 1
    return [f"{base[:width].rstrip('-')}-{number}" for number in range(1, len(chosen) + 1)]
