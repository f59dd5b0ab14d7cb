"""Where the job goes on: what the lead does with the run directory before the first step."""

from __future__ import annotations

import json
import logging

from rljob_api.vocabulary import keys
from rljob_worker.checkpoint.restore import ResumePoint, choose_start, discard_after
from rljob_worker.checkpoint.resume import Finished, decide_start, existing_run
from rljob_worker.checkpoint.versions import require_versions
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.rundir.ownership import claim_run
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.storage.files import write_atomically
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.store_errors import is_for_good

log = logging.getLogger(__name__)


def open_run(environment: WorkerEnvironment) -> ResumePoint:
    """Claim the run and choose its start.

    On one machine the supervisor has looked at what an earlier run left before it started anything. On a cluster this
    is the first process that sees the storage, so it asks the same questions: InvalidJob for a job that cannot go on
    with what is there.
    """
    directory = RunDirectory(environment.run_dir, environment.home)
    if not environment.keeps_checkpoints:
        log.warning(
            "no checkpoints: the job has no spec.storage, and its pods do not see each other's disks; "
            "a restart begins at step 0. Set spec.storage to keep them"
        )
    _prepare(directory)
    resume = _asked(directory, environment) if environment.owner.run_id else environment.resume
    claim_run(directory.home, environment.owner)
    if environment.owner.run_id or environment.store:
        write_atomically(directory.document, _document(environment))
        write_atomically(directory.home / keys.PLAN_KEY, environment.plan.canonical_json())
    start = choose_start(directory.checkpoints, resume)
    if start.checkpoint is not None:
        require_versions(start.checkpoint, start.step, environment.plan.spec)
    discard_after(directory.checkpoints, start.step)
    return start


def _asked(directory: RunDirectory, environment: WorkerEnvironment) -> str:
    decision = decide_start(environment.resume, environment.plan.spec, existing_run(directory))
    if decision.say:
        log.info(decision.say)
    return "auto" if isinstance(decision, Finished) else decision.resume


def _prepare(directory: RunDirectory) -> None:
    home = directory.home
    if isinstance(home, ObjectPath):
        require_conditional_puts(home)
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create {directory.path}: {error.strerror}; free space or fix permissions of spec.storage"
        ) from error


def require_conditional_puts(home: ObjectPath) -> None:
    """Without them an attempt on a node that was cut off could commit over a later one. Raises InvalidJob for a store
    that has none, or that its credentials do not open; StorageError when it does not answer."""
    try:
        if home.bucket.heeds_conditions(f"{home.key}/conditional-put"):
            return
    except OSError as error:
        kind = InvalidJob if is_for_good(error) else StorageError
        raise kind(f"spec.storage.objectStore: {home}: {error.strerror}") from error
    raise InvalidJob(
        f"spec.storage.objectStore: the store of {home} takes a put on a condition (If-None-Match, If-Match) as a "
        "plain one, so that two attempts could commit at once; use a store that knows conditional "
        "puts, or a volume claim"
    )


def _document(environment: WorkerEnvironment) -> str:
    """The job as it runs, as `rljob run` leaves it: JSON is YAML too. What is not said in it an older version may
    read that does not know the field."""
    plan = environment.plan
    metadata = {"name": plan.job}
    head = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": metadata}
    spec = plan.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps({**head, "spec": spec}, indent=1)
