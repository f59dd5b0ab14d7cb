"""Weights & Biases. Account, server and mode come from its own environment variables: WANDB_API_KEY, WANDB_MODE …"""

import netrc
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rljob_worker.metrics.tables import table_of
from rljob_worker.metrics.trackers.run_ids import read_run_id, write_run_id
from rljob_worker.metrics.trackers.tracker import TrackedRun

PROJECT = "rljob"
"""Where WANDB_PROJECT names none."""
_HOST = "https://api.wandb.ai"
_WITHOUT_LOGIN = ("offline", "disabled", "dryrun")
"""Modes of W&B."""
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


class WandBTracker:
    """One run of W&B per run directory."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._wandb, self._name = wandb, name
        run_id = read_run_id(directory, "WandB")
        if run_id is None:
            run_id = secrets.token_hex(4)
            write_run_id(directory, "WandB", run_id)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=name, id=run_id, resume="allow", dir=str(directory),
            config=dict(config), settings=wandb.Settings(console="off", silent=True, disable_git=True),
        )  # fmt: skip
        # an axis of our own: W&B drops points whose own step lies behind, which those after a resume do
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        point: dict[str, Any] = {"step": step, **metrics}
        if samples:
            columns, rows = table_of(samples)
            # a row of validation lacks what others have, and one reward may be 1 where the next is 0.5
            point["samples"] = self._wandb.Table(columns=[*columns], data=rows, allow_mixed_types=True)
        self._run.log(point)

    def upload(self, path: Path, name: str) -> None:
        artifact = self._wandb.Artifact(f"{self._name}-{name}", type="model" if path.is_dir() else "file")
        add = artifact.add_dir if path.is_dir() else artifact.add_file
        add(str(path), policy="immutable", skip_cache=True)  # what is sent is not copied first
        self._run.log_artifact(artifact)

    def cut_back(self, step: int) -> None:
        """W&B forgets nothing; the same steps come once more, with the same values where the job is deterministic."""

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


def open_wandb(run: TrackedRun) -> WandBTracker:
    return WandBTracker(run.directory, run.name, run.config)


def without_login(environment: Mapping[str, str]) -> str | None:
    """A sentence where nothing in an environment says whose account it is."""
    if _has_login(environment):
        return None
    return (
        f"WandB has no account here: WANDB_API_KEY is not set, and no netrc file names {_host(environment)}; "
        "`wandb login` makes one, and WANDB_MODE=offline does without"
    )


def _has_login(environment: Mapping[str, str]) -> bool:
    if environment.get("WANDB_MODE", "").lower() in _WITHOUT_LOGIN or any(map(environment.get, _KEYS)):
        return True
    home = Path(environment.get("HOME", "~")).expanduser()
    named = environment.get("NETRC")
    places = [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]
    return any(_names(place, _host(environment)) for place in places)


def _host(environment: Mapping[str, str]) -> str:
    return urlsplit(environment.get("WANDB_BASE_URL") or _HOST).netloc


def _names(place: Path, host: str) -> bool:
    try:
        return netrc.netrc(place).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
