"""Data and models in an object store, on a web server or on the Hub: which forms there are, what is wrong with one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

STORES = {"s3": "a bucket of S3 or of a store that speaks like it", "gs": "a bucket of Google Cloud", "az": "Azure"}
"""Schemes of object stores, which list what they hold: files, folders and patterns."""

VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""How the names of the variables begin from which workers take a store's credentials and its address."""

WEB = ("https", "http")
"""Schemes of web servers: single files."""

HUB = "hf"
"""The scheme of data sets of the Hugging Face Hub: `hf://datasets/owner/name@revision/folder/*.parquet`."""

COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".zip")
"""Endings of files in which no row can be read without all that come before it."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MAGIC = re.compile(r"[*?\[]")


_HUB_FORM = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HubData:
    """A data set of the Hub, as its URL names it."""

    name: str
    """`owner/name`."""
    revision: str | None
    """A branch, a tag or a commit; None: the main branch."""
    files: str | None
    """A file, a folder or a pattern in it; None: those of a split."""


def hub_data(url: str) -> HubData | None:
    """None for what does not name a data set of the Hub."""
    match = _HUB_FORM.fullmatch(url)
    return None if match is None else HubData(match[1], unquote(match[2]) if match[2] else None, match[3])


_HUB_MODEL = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)@([^/@\s]+)")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the Hub, as its path names it."""

    name: str
    revision: str | None
    """A branch, a tag or a commit; None where the path names none."""


def hub_model(path: str) -> HubModel:
    """`owner/name` or `owner/name@revision`; any other path is a name without a revision."""
    match = _HUB_MODEL.fullmatch(path)
    return HubModel(path, None) if match is None else HubModel(match[1], unquote(match[2]))


def scheme_of(path: str) -> str | None:
    """`s3` for `s3://bucket/file`; None for the path of a file or the name of a data set."""
    match = _SCHEME.match(path)
    return None if match is None else match[1].lower()


def has_pattern(path: str) -> bool:
    """Whether a path stands for all files that match it."""
    return _MAGIC.search(path) is not None


def problem_of(url: str) -> tuple[str, str] | None:
    """What is wrong with the form of a data URL, and what to write; None for one that may be looked up."""
    scheme = scheme_of(url)
    if scheme == HUB:
        form = "Write hf://datasets/owner/name, or hf://datasets/owner/name@revision/folder/*.parquet."
        return None if hub_data(url) else ("the URL names no data set of the Hub", form)
    if scheme not in (*STORES, *WEB):
        known = ", ".join(f"{name}://" for name in (*STORES, *WEB, HUB))
        return f"data is not read from {scheme}://", f"Known: {known}, or a path without a scheme."
    at_host = urlsplit(url).netloc
    if "@" in at_host or (scheme in WEB and "?" in url):
        return (
            "a job holds no credentials, and this URL may",
            "Write it without, and give the workers' environment the credentials, such as AWS_ACCESS_KEY_ID.",
        )
    has_container = scheme != "az" or bool(urlsplit(url).path.strip("/"))
    if not at_host or not has_container:
        form = "az://account/container/folder/file.jsonl" if scheme == "az" else f"{scheme}://bucket/folder/file.jsonl"
        return "the URL names no " + ("container" if scheme == "az" else "bucket or host"), f"Write {form}."
    if scheme in WEB and has_pattern(url):
        return "a web server does not list its files", "Name each file as a data set of its own."
    if url.endswith(COMPRESSED):
        return (
            "rows of a compressed file cannot be read one by one",
            "Store it uncompressed, or as Parquet, which compresses inside.",
        )
    return None


def folder_problem_of(url: str) -> tuple[str, str] | None:
    """What is wrong with the URL of a folder with weights or checkpoints, and what to write."""
    if scheme_of(url) not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        return f"{scheme_of(url) or 'a path'} is not an object store", f"Known: {known}."
    if has_pattern(url):
        return "a folder is one place and no pattern", "Write the folder's whole name."
    return problem_of(url)


def without_secrets(url: str) -> str:
    """A URL as a message may show it: no user, no password, no query; what is not a URL stays as it is."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        return url
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
