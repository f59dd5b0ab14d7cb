"""Answers of the Hub as errors of the job, for data sets and models."""

from __future__ import annotations

from rljob_worker.errors import BadData, InvalidJob, NotHere, RLJobError

_BUSY = (408, 429, 500, 502, 503, 504)


def is_passing(error: BaseException) -> bool:
    """Whether the Hub is busy or silent, so that the same request may be answered later."""
    from httpx2 import TransportError

    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in _BUSY or isinstance(error, TimeoutError | TransportError)


def words_of(error: BaseException) -> str:
    """What the Hub said, on one line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"it answered {status}"
    return str(error).partition("\n")[0] or "it said nothing"


def explained(kind: str, name: str, revision: str | None, error: BaseException) -> RLJobError | None:
    """An answer of the Hub as an error of the job; None for anything else. kind: what was asked for, `data set`."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = f"the {kind} {name}"
    if isinstance(error, GatedRepoError):
        return NotHere(
            f"the Hub shows {what} only to those that its owner admits; ask for access on its page, and "
            "set HF_TOKEN in the environment of the workers"
        )
    if isinstance(error, RevisionNotFoundError):
        return InvalidJob(f"{what} has no revision {revision!r}; name a branch, a tag or a commit")
    if isinstance(error, EntryNotFoundError):
        return BadData(f"a file of {what} is gone from the Hub; name another revision, start a new run")
    if isinstance(error, RepositoryNotFoundError):
        if get_token() is None:
            return NotHere(f"the Hub shows no {kind} {name} without an HF_TOKEN; correct the name, or set HF_TOKEN")
        return InvalidJob(f"the Hub shows no {kind} {name}; correct the name, or HF_TOKEN and HF_ENDPOINT")
    if isinstance(error, HfHubHTTPError):
        return InvalidJob(f"the Hub refuses {what}: {words_of(error)}; see to HF_TOKEN and HF_ENDPOINT")
    return None
