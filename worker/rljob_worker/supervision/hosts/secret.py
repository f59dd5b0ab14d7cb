"""What launchers of one job know and nobody else: the token. It never crosses the network, and what does is sealed.

Every connection has two keys, one for each direction, made of the token and of a number that either side has drawn:
what was recorded of another connection, or comes back, or out of order, opens nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken

from rljob_api.vocabulary.keys import ENV_TOKEN
from rljob_worker.databuffer.links.token import is_visible
from rljob_worker.errors import InvalidJob

MIN_CHARACTERS = 16
NONCE_BYTES = 16

_COUNT_BYTES = 8


class Foreign(Exception):
    """What came was sealed by somebody without the token, or is not what should come next."""


def launch_token(environment: Mapping[str, str]) -> str:
    """The secret that all launchers of the job were given. Raises InvalidJob, with what to do."""
    fix = f"give all launchers the same: export {ENV_TOKEN}=$(openssl rand -hex 32) before they are started"
    token = environment.get(ENV_TOKEN, "")
    if not token:
        raise InvalidJob(f"{ENV_TOKEN} is not set: anybody on the network could join the job; {fix}")
    if len(token) < MIN_CHARACTERS or not is_visible(token):
        raise InvalidJob(f"{ENV_TOKEN} is not a secret of {MIN_CHARACTERS} to 512 visible ASCII characters; {fix}")
    return token


def data_token(token: str) -> str:
    """What the data buffers of the job show each other; it tells nothing of the launchers' own."""
    return _digest(token, b"data buffers").hex()


def services_token(token: str) -> str:
    """What workers show the job's services."""
    return _digest(token, b"services").hex()


class Seals:
    """One side of one connection."""

    def __init__(self, token: str, ours: bytes, theirs: bytes) -> None:
        """ours, theirs: the numbers that this and the other side have drawn for the connection."""
        self._sealing = _key(token, ours, theirs)
        self._opening = _key(token, theirs, ours)
        self._num_sealed = self._num_opened = 0

    def seal(self, body: bytes) -> bytes:
        """The next frame to the other side."""
        self._num_sealed += 1
        return self._sealing.encrypt(self._num_sealed.to_bytes(_COUNT_BYTES, "big") + body)

    def open(self, sealed: bytes) -> bytes:
        """What the next frame of the other side holds; raises Foreign."""
        try:
            opened = self._opening.decrypt(sealed)
        except InvalidToken:
            raise Foreign from None
        self._num_opened += 1
        if opened[:_COUNT_BYTES] != self._num_opened.to_bytes(_COUNT_BYTES, "big"):
            raise Foreign
        return opened[_COUNT_BYTES:]


def _key(token: str, sender: bytes, receiver: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(_digest(token, b"launchers" + sender + receiver)))


def _digest(token: str, purpose: bytes) -> bytes:
    return hmac.digest(token.encode(), purpose, hashlib.sha256)
