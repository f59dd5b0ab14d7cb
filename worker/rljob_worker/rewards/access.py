"""Where the service of a reward answers, and the token that its calls carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from rljob_api.vocabulary import keys
from rljob_worker.errors import InvalidJob

if TYPE_CHECKING:
    from rljob_api.v1alpha1.data import RewardSpec


class ServiceAccess(TypedDict):
    """A service as the worker describes it to its reward processes; a value of JSON."""

    name: str
    """What metrics and messages call it."""
    url: str
    token: str
    """Empty: calls carry none."""
    batch_rows: int
    concurrency: int
    by_proxy: NotRequired[bool]
    """Whether calls go by the proxy that the process's variables name."""


def access_of(reward: RewardSpec, environment: Mapping[str, str]) -> ServiceAccess | None:
    """None for a reward that asks no service. Raises InvalidJob: a token that is not where the job says."""
    if reward.service is not None:
        return service_access(reward.service, environment, reward.batch_rows, reward.concurrency)
    if reward.url is None:
        return None
    token = _token(reward, environment)
    return ServiceAccess(
        name=reward.name, url=reward.url, token=token, batch_rows=reward.batch_rows, concurrency=reward.concurrency
    )


def service_access(
    name: str, environment: Mapping[str, str], batch_rows: int = 1, concurrency: int = 1
) -> ServiceAccess:
    """A service of the job."""
    url = json.loads(environment[keys.ENV_SERVICES])[name]
    token = Path(environment[keys.ENV_SERVICES_TOKEN_FILE]).read_text().strip()
    return ServiceAccess(name=name, url=url, token=token, batch_rows=batch_rows, concurrency=concurrency)


def _token(reward: RewardSpec, environment: Mapping[str, str]) -> str:
    """Raises InvalidJob where there is none though the job says so: a stranger is refused only later, by name."""
    owner = f'reward "{reward.name}"'
    if reward.token_variable is not None:
        token = environment.get(reward.token_variable, "").strip()
        if not token:
            raise InvalidJob(
                f"{owner}: tokenVariable {reward.token_variable} is not set in the workers' environment; add it to "
                "`env`, on a cluster from a Secret, or export it before `rljob run`"
            )
        return token
    if reward.token_file is not None:
        try:
            token = Path(reward.token_file).read_text().strip()
        except OSError as error:
            raise InvalidJob(f"{owner}: tokenFile {reward.token_file} cannot be read: {error.strerror}") from error
        if not token:
            raise InvalidJob(f"{owner}: tokenFile {reward.token_file} is empty; put the token into it")
        return token
    return ""
