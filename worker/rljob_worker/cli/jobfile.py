"""Reading a job's file: text, checks, and the files it names."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rljob_api.loading.document import read_document
from rljob_api.loading.load import parse_job
from rljob_api.loading.overrides import written_by
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import InvalidJobError, Problem
from rljob_worker.errors import InvalidJob
from rljob_worker.local.job_paths import missing_paths


def read_job(path: Path, overrides: Sequence[str]) -> RLJob:
    """The checked job; InvalidJobError with every problem, files it names that are not there included."""
    text = read_text(path)
    job = parse_job(text, overrides)
    missing = missing_files(job, path.absolute().parent)
    if missing:
        document = read_document(text)
        raise InvalidJobError(
            replace(each, line=document.line_of(each.path), override=written_by(each.path, overrides))
            for each in missing
        )
    return job


def read_text(path: Path) -> str:
    """The file's text; InvalidJob, with the fix, when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidJob(f"there is no file {path}; `rljob new NAME` writes a job to start from") from None
    except IsADirectoryError:
        raise InvalidJob(f"{path} is a directory; name the job's YAML file") from None
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise InvalidJob(f"cannot read {path}: {error.strerror}") from None


def missing_files(job: RLJob, folder: Path) -> list[Problem]:
    """A problem for each local file or directory that the job names and that does not exist."""
    return [
        Problem(
            path=path.place,
            found=path.text,
            message="there is no such file or directory",
            fix=f"Put it at {path.beside(folder)}, or correct the path; relative paths begin at the YAML file.",
        )
        for path in missing_paths(job, folder)
    ]
