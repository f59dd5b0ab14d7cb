"""Reading a job's file: text, checks, the files it names, and the rehearsal."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import requires
from pathlib import Path

from rljob_api.loading.document import read_document
from rljob_api.loading.load import read_job as parsed_job
from rljob_api.loading.load import with_source
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan as plan_of
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.cli.extras import is_installed, missing_packages
from rljob_worker.errors import InvalidJob
from rljob_worker.job_paths import missing_paths, with_absolute_paths
from rljob_worker.local.pods.environment import users_environment
from rljob_worker.model_shapes import configs_in, shapes_of
from rljob_worker.rehearsal.finding import Finding, Findings
from rljob_worker.rundir.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file, and the job it is with its overrides."""

    path: Path
    text: str
    overrides: tuple[str, ...]
    job: RLJob
    problems: tuple[Problem, ...] = ()
    """What is wrong with its fields; then the job is what was probably meant."""

    @property
    def folder(self) -> Path:
        """Where relative paths begin."""
        return self.path.absolute().parent

    @property
    def code(self) -> Path:
        """Where the user's modules are: beside the file, or where they were when the run began that left it."""
        run = RunDirectory(self.folder)
        if self.path.name != run.job.name or not run.code.is_file():
            return self.folder
        return Path(os.path.abspath(self.folder / run.code.read_text()))

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Problems with who wrote what they are about."""
        document = read_document(self.text)
        return [with_source(problem, document, self.overrides) for problem in problems]

    def located_findings(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        problems = self.located(finding.problem for finding in findings)
        return tuple(replace(item, problem=problem) for item, problem in zip(findings, problems, strict=True))


def open_job(path: Path, overrides: Sequence[str]) -> JobFile:
    """InvalidJobError where nobody can guess what job is meant, InvalidJob for a file that cannot be read."""
    return job_of_text(read_text(path), path, overrides)


def job_of_text(text: str, path: Path, overrides: Sequence[str]) -> JobFile:
    """Read a job from a text; paths are relative to the directory of `path`. InvalidJobError where nobody can guess
    what is meant."""
    job, problems = parsed_job(text, overrides)
    if job is None:
        raise InvalidJobError(problems)
    return JobFile(path, text, tuple(overrides), job, tuple(problems))


def examine(file: JobFile, *, looks_at_data: bool = True) -> tuple[Plan | None, Findings]:
    """The plan of the job with absolute paths, and everything that would end it; no plan where it cannot be planned.
    Of what this machine lacks it has models alone; what it warns of is advice on the plan and on the data."""
    missing = missing_files(file.job, file.folder, with_data=looks_at_data)
    plan, problems = (None, file.problems) if file.problems else planned(file)
    own = [Finding(item) for item in (*problems, *file.located(missing))]
    rehearsal = _rehearsed(file, looks_at_data=looks_at_data)
    paths = {item.problem.path for item in own}
    result = [item for item in rehearsal.found if item.problem.path not in paths]
    lacking = file.located_findings(rehearsal.lacking)
    warned = (*(warnings_of(plan) if plan is not None else ()), *rehearsal.warned)
    return plan, Findings((*own, *file.located_findings(result)), rehearsal.unseen, lacking, warned)


def planned(file: JobFile) -> tuple[Plan | None, Sequence[Problem]]:
    """With absolute paths; no plan where it cannot be planned, and why."""
    located = with_absolute_paths(file.job, file.folder)
    try:
        return plan_of(located, shapes=shapes_of(located.spec, configs_in(file.folder))), ()
    except InvalidJobError as error:
        return None, file.located(error.problems)


def _rehearsed(file: JobFile, *, looks_at_data: bool) -> Findings:
    if not has_worker():
        unseen = "data, tokenizer, functions of your own and this machine: pip install 'rljob[worker]' for that"
        return Findings((), (unseen,))
    from rljob_worker.rehearsal.rehearse import rehearse  # a plain install lacks what it reads with

    spec = file.job.spec
    return rehearse(spec, file.folder, users_environment(os.environ, spec, file.code), looks_at_data=looks_at_data)


def has_worker() -> bool:
    """Whether what a rehearsal reads with is installed."""
    return not missing_packages(requires("rljob") or (), "worker", is_installed)


def read_text(
    path: Path, what: str = "the job's YAML file", hint: str = "`rljob new NAME` writes a job to start from"
) -> str:
    """The file's text; InvalidJob, with the fix, when it cannot be read. what: it is.   hint: where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidJob(f"there is no file {path}; {hint}") from None
    except IsADirectoryError:
        raise InvalidJob(f"{path} is a directory; name {what}") from None
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise InvalidJob(f"cannot read {path}: {error.strerror}") from None


def missing_files(job: RLJob, folder: Path, *, with_data: bool = True) -> list[Problem]:
    """A problem for each local file or directory that the job names and that does not exist."""
    return [
        Problem(
            path=path.place,
            found=path.text,
            message="there is no such file or directory",
            fix=f"Put it at {path.beside(folder)}, or correct the path; relative paths begin at the YAML file.",
        )
        for path in missing_paths(job, folder)
        if with_data or not path.is_data
    ]
