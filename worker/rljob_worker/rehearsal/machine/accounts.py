"""Whether this machine has what trackers ask for: an account of W&B, a server of MLflow."""

from __future__ import annotations

import netrc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_WANDB_HOST = "https://api.wandb.ai"
_WITHOUT_ACCOUNT = ("offline", "disabled", "dryrun")
"""Modes of W&B."""
_WANDB_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def unreachable_trackers(trackers: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each of which nothing here says how to reach it. environment: of a worker.

    It may be reached all the same, say by settings in a file of its own, so that this keeps no job from running.
    """
    if "WandB" in trackers and not _has_wandb_account(environment):
        host = _wandb_host(environment)
        yield (
            f"WandB has no account here: WANDB_API_KEY is not set, and no netrc file names {host}; `wandb login` makes "
            "one, and WANDB_MODE=offline does without"
        )
    if "MLflow" in trackers and not environment.get("MLFLOW_TRACKING_URI"):
        yield "MLflow has no server here: MLFLOW_TRACKING_URI is not set, such as to http://mlflow.example:5000"


def _has_wandb_account(environment: Mapping[str, str]) -> bool:
    if environment.get("WANDB_MODE", "").lower() in _WITHOUT_ACCOUNT or any(map(environment.get, _WANDB_KEYS)):
        return True
    home = Path(environment.get("HOME", "~")).expanduser()
    named = environment.get("NETRC")
    places = [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]
    return any(_names(place, _wandb_host(environment)) for place in places)


def _wandb_host(environment: Mapping[str, str]) -> str:
    return urlsplit(environment.get("WANDB_BASE_URL") or _WANDB_HOST).netloc


def _names(place: Path, host: str) -> bool:
    try:
        return netrc.netrc(place).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
