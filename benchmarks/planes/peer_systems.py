"""Writers and readers of Ray, TransferQueue, siiRL and verl: what each does in the process of an actor.

Ray            writers put all their columns as one object; readers get the objects, whose arrays are mapped, and
               copy their rows into arrays that they keep
TransferQueue  kv_batch_put of the writers' rows, kv_batch_get of the readers' keys: two SimpleStorage units, as
               many as it starts by itself
siiRL          ray.put of every sample, put_batch and get_batch of the DataCoordinator, ray.get; the samples are
               concatenated with one copy, which is less than its own collation does
verl           the driver gets every writer's DataProto, concatenates and chunks them; readers get the chunks. A
               DataProto is padded, so ragged rows are padded to the longest before
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from rows import COLUMNS, NUM_COLUMNS, RowCase, RowsPart, part_of
from tensordict import TensorDict

SIIRL_FIELDS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "responses",
    "response_mask",
    "old_log_probs",
    "ref_log_prob",
    "values",
    "advantages",
)
"""Array fields of its Sample: a sample has no others to put columns in."""


class Ranked:
    """A writer or reader. `fresh` are the rows it writes, or none."""

    def __init__(self, case: RowCase, source: Path, kind: str, rank: int) -> None:
        self.case, self.rank = case, rank
        self.rows = part_of(case, source, rank) if kind == "writer" else None
        self.held: RowsPart | None = None

    def part(self) -> RowsPart:
        assert self.held is not None
        return self.held

    def put(self, step: int) -> None:
        raise NotImplementedError

    def get(self, step: int) -> None:
        raise NotImplementedError

    def copy_out(self) -> None:
        return

    def release(self, step: int) -> None:
        self.held = None

    def share(self) -> range:
        """The rows of one reader: as many as every other's."""
        num_rows = self.case.num_rows // self.case.num_readers
        return range(self.rank * num_rows, (self.rank + 1) * num_rows)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Padded rows as [rows, length], ragged ones as jagged nested tensors over the same memory."""
        assert self.rows is not None
        if self.case.is_padded:
            shape = -1, self.case.mean
            columns = zip(COLUMNS, self.rows.columns, strict=True)
            return {name: torch.from_numpy(values).view(shape) for name, values in columns}
        offsets = torch.from_numpy(self.rows.offsets)
        return {
            name: torch.nested.nested_tensor_from_jagged(torch.from_numpy(values), offsets)
            for name, values in zip(COLUMNS, self.rows.columns, strict=True)
        }

    def take(self, tensors: dict[str, torch.Tensor], row_ids: Any) -> None:
        """What has come, as arrays one after the other; nothing is copied where it lies so already."""
        flat = [t.values() if t.is_nested else t.contiguous().view(-1) for t in (tensors[n] for n in COLUMNS)]
        lengths = self.case.lengths()[row_ids]
        self.held = RowsPart(np.asarray(row_ids), lengths, [tensor.numpy() for tensor in flat])


@ray.remote(num_cpus=0)
class Mailbox:
    """Object references on their way, for Ray itself has no names for objects."""

    def __init__(self) -> None:
        self._refs: list[Any] = []

    def leave(self, rank: int, refs: list[Any]) -> None:
        self._refs.append((rank, refs))

    def look(self) -> list[Any]:
        return [refs[0] for _, refs in sorted(self._refs, key=lambda item: item[0])]

    def clear(self) -> None:
        self._refs = []


class RayObjects(Ranked):
    """Ray's object store."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self._mailbox = ray.get_actor("mailbox", namespace="planes")
        self._heap = np.ones((NUM_COLUMNS, 0), np.float32)

    def put(self, step: int) -> None:
        ref = ray.put((self.rows.row_ids, self.rows.lengths, list(self.rows.columns)))
        ray.get(self._mailbox.leave.remote(self.rank, [ref]))

    def get(self, step: int) -> None:
        parts = [RowsPart(*ray.get(ref)) for ref in ray.get(self._mailbox.look.remote())]
        mine, lengths = self.share(), self.case.lengths()
        size = int(lengths[mine.start : mine.stop].sum())
        if self._heap.shape[1] != size:
            self._heap = np.ones((NUM_COLUMNS, size), np.float32)
        done = 0
        for part in parts:
            first, stop = np.searchsorted(part.row_ids, (mine.start, mine.stop))
            run = slice(part.offsets[first], part.offsets[stop])
            for target, column in zip(self._heap, part.columns, strict=True):
                target[done : done + run.stop - run.start] = column[run]
            done += run.stop - run.start
        self.held = RowsPart(np.arange(mine.start, mine.stop), lengths[mine.start : mine.stop], list(self._heap))

    def release(self, step: int) -> None:
        super().release(step)
        ray.get(self._mailbox.clear.remote())


class TransferQueue(Ranked):
    """TransferQueue's key-value interface."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        import transfer_queue

        self._queue = transfer_queue
        transfer_queue.init()
        if self.rows is not None:
            self._fields = TensorDict(self.tensors(), batch_size=len(self.rows.row_ids))

    def put(self, step: int) -> None:
        keys = [str(row) for row in self.rows.row_ids]
        self._queue.kv_batch_put(keys=keys, partition_id=f"step{step}", fields=self._fields)

    def get(self, step: int) -> None:
        self._keys = [str(row) for row in self.share()]
        got = self._queue.kv_batch_get(keys=self._keys, partition_id=f"step{step}")
        self.take(got, list(self.share()))

    def release(self, step: int) -> None:
        super().release(step)
        if self.rows is None:
            self._queue.kv_clear(keys=self._keys, partition_id=f"step{step}")


class SiiRL(Ranked):
    """siiRL's DataCoordinator."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        from siirl.data_coordinator import SampleInfo
        from siirl.data_coordinator.sample import Sample

        self._coordinator = ray.get_actor("coordinator", namespace="planes")
        self._sample, self._info = Sample, SampleInfo
        self._refs: list[Any] = []

    def put(self, step: int) -> None:
        offsets, infos, refs = self.rows.offsets, [], []
        for index, row in enumerate(self.rows.row_ids):
            run = slice(offsets[index], offsets[index + 1])
            arrays = {field: column[run] for field, column in zip(SIIRL_FIELDS, self.rows.columns, strict=True)}
            uid = str(row)
            refs.append(ray.put(self._sample.model_construct(uid=uid, **arrays)))
            length = int(self.rows.lengths[index])
            infos.append(self._info(sum_tokens=length, uid=uid, dict_info={"key": step}))
        self._refs = refs
        node = ray.get_runtime_context().get_node_id()
        ray.get(self._coordinator.put_batch.remote(infos, refs, node))

    def get(self, step: int) -> None:
        refs = ray.get(
            self._coordinator.get_batch.remote(
                len(self.share()),
                self.rank,
                filter_plugin=lambda info: info.dict_info.get("key") == step,
                balance_partitions=self.case.num_readers,
            )
        )
        samples = sorted(ray.get(refs), key=lambda sample: int(sample.uid))
        columns = [np.concatenate([getattr(sample, field) for sample in samples]) for field in SIIRL_FIELDS]
        row_ids = np.array([int(sample.uid) for sample in samples])
        self.held = RowsPart(row_ids, self.case.lengths()[row_ids], columns)

    def release(self, step: int) -> None:
        super().release(step)
        self._refs = []
        if self.rows is None:
            ray.get(self._coordinator.reset_cache.remote())


class Verl(Ranked):
    """verl's DataProto; the driver calls `rows_out` and `rows_in` instead of put and get."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        from verl import DataProto

        if self.rows is not None:
            tensors = self.tensors() if self.case.is_padded else self._padded()
            self._rows = DataProto.from_dict(tensors | {"row_ids": torch.from_numpy(self.rows.row_ids)})

    def _padded(self) -> dict[str, torch.Tensor]:
        """As its rollout makes them."""
        width = int(self.case.lengths().max())
        mask = torch.arange(width)[None] < torch.from_numpy(self.rows.lengths)[:, None]
        tensors = {name: torch.zeros(mask.shape) for name in COLUMNS}
        for name, values in zip(COLUMNS, self.rows.columns, strict=True):
            tensors[name][mask] = torch.from_numpy(values)
        return tensors

    def rows_out(self) -> Any:
        return self._rows

    def rows_in(self, chunk: Any) -> None:
        self._chunk = chunk

    def part(self) -> RowsPart:
        """Without the padding; that is not timed."""
        batch = self._chunk.batch
        row_ids = batch["row_ids"].numpy()
        lengths = self.case.lengths()[row_ids]
        width = batch[COLUMNS[0]].shape[1]
        mask = None if self.case.is_padded else torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        flat = [batch[name].view(-1) if mask is None else batch[name][mask] for name in COLUMNS]
        return RowsPart(row_ids, lengths, [item.numpy() for item in flat])

    def release(self, step: int) -> None:
        self._chunk = None


SYSTEMS: dict[str, type[Ranked]] = {
    "Ray": RayObjects,
    "TransferQueue": TransferQueue,
    "siiRL": SiiRL,
    "verl": Verl,
}
