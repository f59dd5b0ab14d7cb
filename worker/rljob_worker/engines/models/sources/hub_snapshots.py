"""Files of a model of the Hub, in the Hub's own cache: of `owner/name`, or of `owner/name@revision`."""

from __future__ import annotations

from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from rljob_api.vocabulary.data_url import HubModel, hub_model
from rljob_worker.errors import DeadlineExceeded, InvalidJob, NotHere, RLJobError
from rljob_worker.storage.hub_client import limit_silence
from rljob_worker.storage.hub_errors import explained, is_passing, words_of
from rljob_worker.weight_index import INDEX


def snapshot_of(path: str, *, only: list[str] | None = None, without: list[str] | None = None) -> Path:
    """The folder of one commit. only, without: patterns of names. Raises InvalidJob, or NotHere where another machine
    or token may see more; DeadlineExceeded for a Hub that is busy or silent."""
    model = hub_model(path)
    limit_silence()
    try:
        return Path(
            snapshot_download(model.name, revision=model.revision, allow_patterns=only, ignore_patterns=without)
        )
    except LocalEntryNotFoundError as error:  # nor does the cache have it: the cause says why it was looked at
        raise _refused(model, error.__cause__ or error) from error
    except (OSError, ValueError, HTTPError) as error:
        raise _refused(model, error) from error


def _refused(model: HubModel, cause: BaseException) -> RLJobError:
    if isinstance(cause, OfflineModeIsEnabled):
        revision = "" if model.revision is None else f" --revision {model.revision}"
        return NotHere(
            f"HF_HUB_OFFLINE is set, and the cache here does not have all of the model {model.name}; unset it, or "
            f"fill the cache: hf download {model.name}{revision}"
        )
    if is_passing(cause):
        return DeadlineExceeded(
            f"the Hub did not give the model {model.name}: {words_of(cause)}; see to the network and HF_ENDPOINT"
        )
    result = explained("model", model.name, model.revision, cause)
    return result or InvalidJob(f"the Hub did not give the model {model.name}: {words_of(cause)}")


def fetched(path: str) -> Path:
    """The weights of it."""
    return snapshot_of(path, only=["*.safetensors", INDEX])
