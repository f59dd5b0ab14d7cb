"""The secret of a job: a caller that shows it is of this job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rljob_api.vocabulary.keys import ENV_TOKEN_FILE
from rljob_worker.errors import InvalidJob

MAX_CHARACTERS = 512

_VISIBLE = re.compile(rf"[!-~]{{1,{MAX_CHARACTERS}}}")


def read_token(environment: Mapping[str, str]) -> str:
    """The token in the file that the environment names. Raises InvalidJob naming the variable when there is none."""
    path = environment.get(ENV_TOKEN_FILE)
    if not path:
        raise InvalidJob(
            f"the environment variable {ENV_TOKEN_FILE} is not set; the supervisor or the operator sets it"
        )
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"{ENV_TOKEN_FILE} {path} cannot be read: {error}") from error
    check_token(token, f"{ENV_TOKEN_FILE} {path}")
    return token


def check_token(token: str, source: str = ENV_TOKEN_FILE) -> None:
    """Raises InvalidJob for a token that anybody could show, or nobody."""
    if not token:
        raise InvalidJob(f"{source} is empty: anybody could speak for this job; write a secret into it")
    if not is_visible(token):
        raise InvalidJob(f"{source} holds no token: it has to be 1 to {MAX_CHARACTERS} visible ASCII characters")


def is_visible(text: str) -> bool:
    """Whether a header can carry the text as it is."""
    return _VISIBLE.fullmatch(text) is not None
