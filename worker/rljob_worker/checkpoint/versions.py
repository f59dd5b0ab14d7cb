"""Policy versions that a checkpoint keeps besides its own weights: those that steps in flight are drawn with.

Each source of weights writes its part of a version, `version-MODEL-VERSION-SOURCE.arrow`: a record batch for each
chunk, as it lies in the store of its host. After a restart any number of sources sends them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_api.planning.weights.versions import versions_in_flight
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.storage.paths import StoragePath

Bytes = NDArray[np.uint8]
Chunk = tuple[bytes, Bytes]
"""What a chunk says of itself (`weights.chunks`), and its bytes, uint8 [num_bytes]."""

_SCHEMA = pa.schema([("table", pa.binary()), ("data", pa.large_binary())])


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """One source's part of a version, which stays where it is until it is written."""

    model: str
    version: int
    source: int
    chunks: Sequence[Chunk]

    @property
    def file_name(self) -> str:
        return f"version-{self.model}-{self.version}-{self.source}.arrow"

    def write(self, directory: StoragePath) -> StoragePath:
        """Write it into a checkpoint; where. Raises OSError."""
        path = directory / self.file_name
        with path.open("wb") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
            for table, data in self.chunks:
                writer.write_batch(_record(table, data))
        return path


def kept_versions(checkpoint: StoragePath, model: str) -> dict[int, list[StoragePath]]:
    """By version, ascending: the files of all sources of a model."""
    result: dict[int, list[tuple[int, StoragePath]]] = {}
    for path in checkpoint.glob("version-*.arrow"):
        name, version, source = path.name.removesuffix(".arrow").removeprefix("version-").rsplit("-", 2)
        if name == model:
            result.setdefault(int(version), []).append((int(source), path))
    return {version: [path for _, path in sorted(result[version])] for version in sorted(result)}


def require_versions(checkpoint: StoragePath, step: int, spec: RLJobSpec) -> None:
    """Raises InvalidJob where a checkpoint has not the versions that the job goes on with: those of a job of another
    `rollout.maxStaleness`."""
    if spec.checkpoint.versions == "Redraw":
        return
    wanted = versions_in_flight(spec, step)
    for policy in spec.policies:
        kept = tuple(kept_versions(checkpoint, policy))
        if wanted != kept:
            staleness = spec.rollout.max_staleness
            raise InvalidJob(
                f"the checkpoint of step {step} keeps {version_words(kept)} of {policy}, and with rollout.maxStaleness "
                f"{staleness} the steps after it are drawn with {version_words(wanted)} besides its own: it is of a "
                "job with another maxStaleness, or with checkpoint.versions: Redraw. Set both to what they were, or "
                "write Redraw to draw those steps anew"
            )


def version_words(versions: Sequence[int]) -> str:
    """`no version`, `version 3`, `versions 3, 4`."""
    if not versions:
        return "no version"
    return f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"


def read_chunks(files: Sequence[StoragePath], number: int, num_sources: int) -> Iterator[Chunk]:
    """What source `number` of `num_sources` sends again of a version. Raises StorageError for a damaged file."""
    for path in files[number::num_sources]:
        try:
            with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
                for record in reader:
                    data = record["data"][0].as_buffer()
                    yield (
                        record["table"][0].as_py(),
                        np.frombuffer(data, np.uint8) if data.size else np.empty(0, np.uint8),
                    )
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"{path} cannot be read: {error}") from error


def _record(table: bytes, data: Bytes) -> pa.RecordBatch:
    """Without a copy of the data."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])
    return pa.record_batch([pa.array([table], pa.binary()), column], schema=_SCHEMA)
