"""A data set of the job that is in an object store, opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

from rljob_api.v1alpha1.data import DatasetSpec
from rljob_api.vocabulary.data_url import hub_data, problem_of
from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.data.listing import Listing, listing_from_json, listing_to_json
from rljob_worker.data.objects.hub import HubStore
from rljob_worker.data.objects.kinds import PARQUET, row_objects
from rljob_worker.data.objects.lines import LineSource
from rljob_worker.data.objects.row_groups import RowGroupSource
from rljob_worker.data.objects.store import RangeStore, Store
from rljob_worker.data.source import DataAccess, DataSource, stem
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import InvalidJob
from rljob_worker.storage.address import Address


def open_objects(spec: DatasetSpec, columns: Sequence[str], access: DataAccess) -> DataSource:
    """Open one data set of the job: list its files, and nothing more.

    One rank of an attempt lists, and the others read what it found: a store that changes while they start cannot give
    them different data.
    Raises BadData: nothing there, files of an unknown kind; InvalidJob: credentials, a URL of no known form;
    DeadlineExceeded, StorageError.
    """
    store = store_of(spec, access.retry_policy)
    identity = [access.attempt, spec.path, *filter(None, (spec.subset, spec.split))]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]

    def make(beat: Beat) -> Iterator[bytes]:
        yield json.dumps(listing_to_json(store.list_files())).encode()

    everything = listing_from_json(
        json.loads(bytes(find_or_make(access.cache_dir / "listings" / f"{name}.json", make)))
    )
    return source_of(spec, everything, columns, store.at(everything))


def store_of(spec: DatasetSpec, retry_policy: StoreRetryPolicy) -> RangeStore:
    """Where a data set is. Raises InvalidJob for a URL of no known form."""
    if problem := problem_of(spec.path):
        raise InvalidJob(f"{spec.path}: {'. '.join(problem)}")
    if (hub := hub_data(spec.path)) is not None:
        return HubStore(hub, spec.subset, spec.split, retry_policy)
    return Store(Address.of(spec.path), retry_policy)


def source_of(spec: DatasetSpec, listing: Listing, columns: Sequence[str], store: RangeStore) -> DataSource:
    """The rows of a listing's files. Raises BadData for files of an unknown kind."""
    kind, files = row_objects(spec.path, listing)
    of_kind = RowGroupSource if kind == PARQUET else LineSource
    return of_kind(spec.name or stem(spec.path), spec.path, files, tuple(columns), store)
