"""Files of a model of the Hub, in the Hub's own cache: of `owner/name`, or of `owner/name@revision`."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RevisionNotFoundError

from rljob_api.vocabulary.data_url import hub_model
from rljob_worker.errors import InvalidJob
from rljob_worker.weight_index import INDEX


def snapshot_of(path: str, *, only: list[str] | None = None, without: list[str] | None = None) -> Path:
    """The folder of one commit. only, without: patterns of names. Raises InvalidJob."""
    model = hub_model(path)
    try:
        return Path(
            snapshot_download(model.name, revision=model.revision, allow_patterns=only, ignore_patterns=without)
        )
    except RevisionNotFoundError as error:
        raise InvalidJob(
            f"model path {path!r}: the hub has no revision {model.revision!r} of it; name a branch, a tag or a commit"
        ) from error
    except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidJob(f"model path {path!r}: the hub did not give it: {reason}") from error


def fetched(path: str) -> Path:
    """The weights of it."""
    return snapshot_of(path, only=["*.safetensors", INDEX])
