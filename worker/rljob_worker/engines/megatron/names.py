"""What checkpoints call the parameters of Megatron-core's layers: one table for files that are read, weights that are
sent and models that are exported.

Several matrices of a file are one here, whose rows are some of the first, some of the second and so on, and again from
the beginning. With two key heads, two query heads to each of them and heads of two rows:

    linear_qkv.weight   q0 q1 q2 q3  k0 k1  v0 v1 | q4 q5 q6 q7  k2 k3  v2 v3
    linear_fc1.weight   g0 u0 | g1 u1 | g2 u2 ...

Ranks that split a matrix have runs of its rows, and so do those that shard it: each reads the rows of the files that
its own are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PretrainedConfig

from rljob_worker.batch import Indices
from rljob_worker.engines.models import TensorPart, parts_of
from rljob_worker.engines.parallel.shards import local_part, own_rows
from rljob_worker.engines.parallel.split import UNSPLIT, Split


@dataclass(frozen=True, slots=True)
class Woven:
    """A matrix of rows of several in turn."""

    sources: tuple[str, ...]
    """What files call the modules that have them."""
    runs: tuple[int, ...] = (1,)
    """How many rows at a time come from each source."""

    def rows_of(self, source: int, here: slice) -> tuple[slice, Indices]:
        """Among some rows of the whole matrix those from one source: which rows of it, and where among `here`."""
        start, period = sum(self.runs[:source]), sum(self.runs)
        turns, places = np.divmod(np.arange(here.start, here.stop), period)
        (mine,) = np.nonzero((places >= start) & (places < start + self.runs[source]))
        if not len(mine):
            return slice(0, 0), mine
        first, last = (int(turns[at] * self.runs[source] + places[at] - start) for at in (mine[0], mine[-1]))
        return slice(first, last + 1), mine


@dataclass(frozen=True, slots=True)
class MegatronNames:
    """The names of one model's tensors in files and in Megatron."""

    table: Mapping[str, Woven]
    """By the module's name in its layer."""

    @staticmethod
    def of(config: PretrainedConfig, head_dim: int) -> MegatronNames:
        queries = config.num_attention_heads // config.num_key_value_heads * head_dim
        attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return MegatronNames(
            {
                "self_attention.linear_qkv": Woven(attention, (queries, head_dim, head_dim)),
                "self_attention.linear_proj": Woven(("self_attn.o_proj",)),
                "self_attention.q_layernorm": Woven(("self_attn.q_norm",)),
                "self_attention.k_layernorm": Woven(("self_attn.k_norm",)),
                "pre_mlp_layernorm": Woven(("post_attention_layernorm",)),
                "mlp.linear_fc1": Woven(("mlp.gate_proj", "mlp.up_proj"), (1, 1)),
                "mlp.linear_fc2": Woven(("mlp.down_proj",)),
            }
        )

    def parts_of(self, name: str, parameter: torch.Tensor, split: Split = UNSPLIT) -> Iterator[TensorPart]:
        """See `models.TensorPartsOf`."""
        module, _, kind = name.rpartition(".")
        result = next((item for item in self.table if module.endswith(f".{item}")), None)
        if result is None:
            yield from parts_of(name, parameter, split)
            return
        woven, stem, share = self.table[result], module.removesuffix(result), split.share(name)
        own, here = local_part(parameter), own_rows(parameter)
        shape = tuple(parameter.shape) if share is None else share.shape(parameter.shape)
        rows, *columns = (here,) if share is None else share.place(parameter.shape, here)
        if len(woven.sources) == 1:
            yield TensorPart(f"{stem}{woven.sources[0]}.{kind}", shape, (rows, *columns), own)
            return
        for index, (source, run) in enumerate(zip(woven.sources, woven.runs, strict=True)):
            there, mine = woven.rows_of(index, rows)
            height = shape[0] * run // sum(woven.runs)
            yield TensorPart(f"{stem}{source}.{kind}", (height, *shape[1:]), (there, *columns), own, mine)
