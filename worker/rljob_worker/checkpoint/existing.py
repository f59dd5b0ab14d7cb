"""What an earlier run left in a directory, read back."""

from rljob_api.loading.document import read_document
from rljob_api.loading.load import by_todays_names
from rljob_api.loading.structure import check_structure
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.resume import Existing
from rljob_worker.errors import InvalidJob
from rljob_worker.job_paths import with_absolute_paths
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.storage.files import read_if_there


def existing_run(directory: RunDirectory) -> Existing | None:
    """What an earlier run left; None where there was none. InvalidJob when its job can no longer be read."""
    text = read_if_there(directory.document)
    if text is None:
        return None
    job, problems = check_structure(by_todays_names(read_document(text).value))
    if job is None or problems:
        raise InvalidJob(
            f"{directory.home} holds a run whose job this version does not understand "
            f"({problems[0] if problems else 'it is no RLJob'}); "
            "give the new run another name (`--set metadata.name=...`)"
        )
    note = directory.read_note()
    spec = with_absolute_paths(job, directory.path).spec
    return Existing(str(directory.home), spec, note.phase if note else "", tuple(checkpoint_steps(directory)))


def checkpoint_steps(directory: RunDirectory) -> list[int]:
    """Steps of committed checkpoints, ascending."""
    return [checkpoint.step for checkpoint in committed(directory.checkpoints)]
