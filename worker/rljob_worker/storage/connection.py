"""A client of one bucket or host. Credentials come from the environment alone."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.storage.address import Address

INSTALL = "pip install 'rljob[objectstore]'"

SILENT_SECONDS = 60.0
"""A store that neither sends nor takes anything for so long does not answer."""

LONGEST_REQUEST = timedelta(days=1)
"""The library ends every request after 30 s, in which a slow line brings no row group and takes no part of a file."""

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Where the environment says which server it is, the first that is set."""

_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; the bucket's "
    "AWS_REGION, and AWS_ENDPOINT_URL for a store other than Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE",
}


def connected(address: Address, timeout_seconds: float = 0.0) -> Any:
    """An obstore client of `address.root`. patience_seconds: for so long it asks again, by itself, a store that answers
    5xx, 429 or not at all; 0 leaves that to the caller. Raises InvalidJob when the library is not installed."""
    try:
        from obstore.store import AzureStore, from_url
    except ImportError as error:
        raise InvalidJob(f"reading {address.root} needs the package obstore: {INSTALL}") from error
    options: Any = {
        "retry_config": _retries(timeout_seconds),
        "client_options": {
            "allow_http": _is_plain(address),
            "timeout": LONGEST_REQUEST,
            "read_timeout": timedelta(seconds=SILENT_SECONDS),
        },
    }
    if address.scheme == "az":  # the library takes the first part of such a URL for the container
        azure_name, _, container = address.root.removeprefix("az://").partition("/")
        return AzureStore(container, account_name=azure_name, **options)
    return from_url(address.root, **options)


def needed(address: Address) -> str:
    """What the environment must hold for this address, as the end of a message."""
    if address.is_web:
        return "what is read from the web must be open to everyone"
    return f"the workers' environment needs {_VARIABLES[address.scheme]}"


def _is_plain(address: Address) -> bool:
    """Whether nothing is encrypted on the way, as the URL says or the environment."""
    endpoints = filter(None, map(os.environ.get, _ENDPOINTS.get(address.scheme, ())))
    return address.scheme == "http" or next(endpoints, "").startswith("http://")


def _retries(timeout_seconds: float) -> Any:
    if not timeout_seconds:
        return {"max_retries": 0}
    backoff = {"init_backoff": timedelta(seconds=0.25), "max_backoff": timedelta(seconds=15), "base": 2.0}
    return {"max_retries": 1000, "retry_timeout": timedelta(seconds=timeout_seconds), "backoff": backoff}
