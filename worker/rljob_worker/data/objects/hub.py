"""One data set of the Hub: its files, and ranges of bytes of them. What its cache here has is read from there.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are the library's, which reads them when it is imported.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import PARTIAL_CONTENT
from pathlib import Path
from typing import Any, TypeVar

from rljob_api.vocabulary.data_url import HubData, hub_data
from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.data.objects.hub_splits import SplitName, files_of_split
from rljob_worker.data.objects.store import Span
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import BadData, InvalidJob, NotHere, RLJobError
from rljob_worker.process.bounded import within
from rljob_worker.storage.address import translated
from rljob_worker.storage.hub_errors import explained, is_passing, words_of

Answer = TypeVar("Answer")

REQUEST_SECONDS = 60.0
"""A Hub that says nothing for so long does not answer."""

MAX_AT_ONCE = 8
"""Requests of one process that are under way together: the Hub counts them."""


@dataclass(frozen=True)
class HubStore:
    """Lists once; what was listed is of one commit, and stays as it is."""

    data: HubData
    subset: str | None
    split: str | None
    retry_policy: StoreRetryPolicy
    pinned: Listing | None = None
    """What was listed before, by this process or another."""

    def list_files(self) -> Listing:
        """The files of the split. Raises BadData for one that is not there; InvalidJob, or NotHere where another
        machine or token may see more; DeadlineExceeded for a Hub that is busy or silent."""
        if self.pinned is not None:
            return self.pinned
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            files, card = self._asked(self._listed)
        except OfflineModeIsEnabled:
            files, card = self._cached()
        return tuple(files[name] for name in self._chosen(sorted(files), card))

    def at(self, listing: Listing) -> HubStore:
        """What reads these files."""
        return replace(self, pinned=listing)

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of some spans, in the order asked for. Raises as `list_files`, and BadData for a file that is gone
        from the Hub."""
        with ThreadPoolExecutor(max(1, min(MAX_AT_ONCE, len(spans)))) as pool:
            return list(pool.map(self._read, spans))

    def _chosen(self, names: Sequence[str], card: Mapping[str, Any]) -> list[str]:
        if self.data.files is None:
            return files_of_split(names, card, SplitName(self.data.name, self.subset, self.split))
        pattern = re.compile(translated(self.data.files))
        folder = f"{self.data.files.rstrip('/')}/"
        result = [name for name in names if pattern.fullmatch(name) or name.startswith(folder)]
        if not result:
            raise BadData(f"no file of the data set {self.data.name} matches {self.data.files}")
        return result

    def _listed(self) -> tuple[dict[str, DataFile], Mapping[str, Any]]:
        """Files by name, and the card."""
        from huggingface_hub import HfApi

        info = HfApi().dataset_info(
            self.data.name, revision=self.data.revision, files_metadata=True, timeout=self._limit_seconds
        )
        root = f"hf://datasets/{self.data.name}@{info.sha}"
        files = {
            item.rfilename: DataFile(
                f"{root}/{item.rfilename}", item.size or 0, item.lfs.sha256 if item.lfs else item.blob_id or ""
            )
            for item in info.siblings or ()
        }
        card: dict[str, Any] = info.card_data.to_dict() if info.card_data else {}  # type: ignore[no-untyped-call]
        return files, card

    def _cached(self) -> tuple[dict[str, DataFile], Mapping[str, Any]]:
        """As `_listed`, of what was downloaded before. Raises NotHere."""
        from huggingface_hub import DatasetCard, snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        name = self.data.name
        try:
            found_at = snapshot_download(name, repo_type="dataset", revision=self.data.revision, local_files_only=True)
        except LocalEntryNotFoundError as error:
            raise NotHere(
                f"HF_HUB_OFFLINE is set, and the cache here does not have the data set {name}; unset it, or fill the "
                f"cache: hf download --repo-type dataset {name}"
            ) from error
        folder = Path(found_at)
        root, places = f"hf://datasets/{name}@{folder.name}", [path for path in folder.rglob("*") if path.is_file()]
        files = {
            str(path.relative_to(folder)): DataFile(
                f"{root}/{path.relative_to(folder)}", path.stat().st_size, path.resolve().name
            )
            for path in places
        }
        readme = folder / "README.md"
        return files, DatasetCard.load(readme).data.to_dict() if readme.is_file() else {}

    def _read(self, span: Span) -> bytes:
        from huggingface_hub import try_to_load_from_cache

        file = hub_data(span.file.path)
        assert file is not None and file.files is not None, "a listing has files of commits"
        cached = try_to_load_from_cache(file.name, file.files, revision=file.revision, repo_type="dataset")
        if isinstance(cached, str):
            with open(cached, "rb") as opened:
                return os.pread(opened.fileno(), span.stop - span.start, span.start)
        return self._asked(lambda: self._fetched(file, span))

    def _fetched(self, file: HubData, span: Span) -> bytes:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(file.name, file.files or "", repo_type="dataset", revision=file.revision)
        headers = {**build_hf_headers(), "Range": f"bytes={span.start}-{span.stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=self._limit_seconds
        ) as answer:
            hf_raise_for_status(answer)
            if answer.status_code != PARTIAL_CONTENT:
                raise InvalidJob(_without_ranges(file.name))
            content: bytes = answer.read()
        if len(content) != span.stop - span.start:
            raise BadData(f"{span.file.path} has fewer bytes than the Hub lists; name another revision")
        return content

    @property
    def _limit_seconds(self) -> float:
        return min(REQUEST_SECONDS, max(2.0, self.retry_policy.total_seconds))

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """An answer of the Hub, which is asked again while it is busy or silent. Its library looks for the name of its
        host without end."""

        async def once() -> Answer:
            return await asyncio.to_thread(within, 2 * self._limit_seconds, ask)

        what = f"the data set {self.data.name} of the Hub"
        try:
            return asyncio.run(self.retry_policy.with_retries(what, once, is_passing, words_of))
        except RLJobError:
            raise
        except Exception as error:
            if (explanation := explained("data set", self.data.name, self.data.revision, error)) is None:
                raise
            raise explanation from error


def _without_ranges(name: str) -> str:
    return (
        f"the server of the data set {name} ignores ranges, and would send whole files for each row; download it once "
        f"(hf download --repo-type dataset {name}), or correct HF_ENDPOINT"
    )
