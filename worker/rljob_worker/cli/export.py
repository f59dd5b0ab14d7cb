"""`rljob export`: a checkpoint as a Hugging Face model directory. The work needs torch, so another process does it."""

import subprocess
import sys
from pathlib import Path

import click

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.data_url import folder_problem_of, scheme_of
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.model_card import model_card
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.status import find_run
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.local.watching.progress import MetricsTail
from rljob_worker.metrics.lines import line_file_errors
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.rundir.home import home_of_directory
from rljob_worker.storage.paths import StoragePath, storage_path
from rljob_worker.storage.store_errors import is_for_good

CARD = "README.md"
STORE_TIMEOUT_SECONDS = 20.0
"""With a store in which something is to be written: somebody waits."""


def export_checkpoint(
    run: str,
    out: str,
    step: int | None,
    runs_dir: Path,
    *,
    merged: bool,
    model: str | None = None,
    push: str | None = None,
    private: bool = False,
) -> int:
    """The exit code of the export; InvalidJob for a step without checkpoint and for an OUT that is not empty.

    out: a directory, or a folder of a store.   model: of those that the run trains; None: its policy.   push: the hub's
    name of a model, `owner/name`, which gets what was written.
    """
    require_extra("worker", "rljob export")
    if push is not None and push.count("/") != 1:
        raise InvalidJob(f"--push {push}: write the hub's name of the model, OWNER/NAME")
    target = _target(out)
    if push is not None and not isinstance(target, Path):
        raise InvalidJob(f"--push {push}: only a directory of this machine is pushed, and {out} is in a store")
    directory = _directory(run, runs_dir)
    chosen = _step(directory, step)
    command = [sys.executable, "-P", "-m", "rljob_worker.checkpoint.export", str(directory.home), str(target)]
    options = ["--step", str(chosen), *(["--model", model] if model else []), *(["--merged"] if merged else [])]
    code = subprocess.run([*command, *options]).returncode
    if code == 0:
        write_card(directory, target, chosen, model)
        if push is not None and isinstance(target, Path):
            push_model(target, push, private=private, message=f"{directory.name}, step {chosen}")
    return code


def _target(out: str) -> StoragePath:
    """Where to, empty. A store is asked before anything is computed."""
    if scheme_of(out) is not None and (problem := folder_problem_of(out)):
        raise InvalidJob(f"{out}: {'. '.join(problem)}")
    target = storage_path(out, STORE_TIMEOUT_SECONDS)
    try:
        is_taken = _is_taken(target)
    except OSError as error:
        raise (InvalidJob if is_for_good(error) else StorageError)(f"{out}: {error.strerror}") from error
    if is_taken:
        raise InvalidJob(f"{out} exists and is not an empty directory; choose another one")
    return target


def _is_taken(target: StoragePath) -> bool:
    if isinstance(target, Path):
        return target.exists() and (not target.is_dir() or any(target.iterdir()))
    return target.is_dir() or (bool(target.key) and target.is_file())


def _directory(run: str, runs_dir: Path) -> RunDirectory:
    """The directory of a run on this machine, or of one in a store, such as `s3://bucket/runs/NAME`, whose metrics are
    here if it ran here."""
    place = storage_path(run)
    if not isinstance(place, Path):
        return RunDirectory(runs_dir / place.name, place)
    path = find_run(run, runs_dir).path
    return RunDirectory(path, home_of_directory(path))


def _step(directory: RunDirectory, step: int | None) -> int:
    steps = [checkpoint.step for checkpoint in committed(directory.checkpoints)]
    if not steps:
        raise InvalidJob(f"{directory.home} has no checkpoint yet")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise InvalidJob(f"--step {step}: {directory.home} has no checkpoint of that step; there are: {there}")
    return steps[-1] if step is None else step


def write_card(directory: RunDirectory, out: StoragePath, step: int, model: str | None) -> None:
    """Write the model card of a policy; a critic has none. model: None for the policy of a run with one."""
    from rljob_worker.rundir.plan import read_plan  # a plain install lacks what it stands on

    plan = read_plan(directory.home / keys.PLAN_KEY)
    policy = plan.spec.policies[0] if model is None else model
    if policy not in plan.spec.policies:
        return
    tail = MetricsTail(directory.metrics)
    tail.poll()
    is_adapter = (out / "adapter_config.json").exists()
    text = model_card(plan, policy, step, tail.records, is_adapter=is_adapter)
    with line_file_errors(out / CARD):
        (out / CARD).write_bytes(text.encode())


def push_model(folder: Path, model: str, *, private: bool, message: str) -> None:
    """The account is the hub library's: HF_TOKEN, or `hf auth login`; HF_ENDPOINT names another hub. Raises
    StorageError where nothing is pushed."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi()
    not_pushed = f"{folder} is written, and {model} is not pushed to {api.endpoint}"
    by_hand = f"then `hf upload {model} {folder}`"
    try:
        api.create_repo(model, private=private or None, exist_ok=True)
        done = api.upload_folder(repo_id=model, folder_path=folder, commit_message=message)
    except HFValidationError as error:
        raise StorageError(f"{not_pushed}, where no model can have this name; choose another, {by_hand}") from error
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise StorageError(f"{not_pushed}: {error}; log in with `hf auth login` or HF_TOKEN, {by_hand}") from error
    except (HTTPError, OSError) as error:  # nobody answered
        raise StorageError(f"{not_pushed}: {error}; see to the network and HF_ENDPOINT, {by_hand}") from error
    click.echo(f"pushed to {done.commit_url}")
