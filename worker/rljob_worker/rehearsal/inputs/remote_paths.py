"""What lies in a store or on the hub, and whether the environment has what opens it: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api.catalogue.services import PREFIX
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.data_url import HUB, WEB, scheme_of
from rljob_worker.errors import DeadlineExceeded, RLJobError, StorageError
from rljob_worker.job_paths import JobPath
from rljob_worker.storage.store_errors import StoreErrorKind, error_kind_of

_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_FEDERATED_TOKEN_FILE"),
}
"""By scheme: variables one of which is set where the rest is. What a cloud hands out to its machines is not asked for:
elsewhere that takes its time to fail."""


def is_at_hand(path: str, environment: Mapping[str, str]) -> bool:
    """Whether what is not here can be looked at where it is: the web and the hub by everyone who has an environment at
    all."""
    scheme = scheme_of(path)
    if JobPath("", path, is_data=False).looks_local:
        return False
    is_open = bool(environment) and (scheme in (None, HUB) or scheme in WEB)
    return is_open or any(environment.get(name) for name in _CREDENTIALS.get(scheme or "", ()))


def model_paths(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """The field and the path of each model that the job names: its own, and those of shipped services."""
    for i, model in enumerate(spec.models):
        yield f"spec.models[{i}].path", model.path
    for i, service in enumerate(spec.services):
        if service.run.startswith(PREFIX) and isinstance(path := service.options.get("path"), str):
            yield f"spec.services[{i}].options.path", path


def remote_paths(spec: RLJobSpec, folder: Path) -> Iterator[str]:
    """Models and data that are not files here; a data set that is not a file is not looked for on the hub."""
    for _, path in model_paths(spec):
        if not (folder / Path(path).expanduser()).exists():
            yield path
    for source in (*spec.data.train, *spec.data.validation):
        if scheme_of(source.path) is not None:
            yield source.path


def whereabouts(path: str) -> str:
    """As the end of a sentence."""
    scheme = scheme_of(path)
    if scheme in (None, HUB):
        return "on the Hub"
    return "on the web" if scheme in WEB else "in a store"


def is_unreachable(error: RLJobError) -> bool:
    """Whether a store or the hub did not answer, or refused: elsewhere, or with other credentials, it may not."""
    cause = error.__cause__
    if isinstance(error, DeadlineExceeded | StorageError) or isinstance(cause, ImportError | PermissionError):
        return True
    return cause is not None and error_kind_of(cause) is StoreErrorKind.DENIED
