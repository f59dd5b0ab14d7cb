"""Keys and values in bytes: what a token takes, and how many a share of the free memory has room for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.attention.heads import head_dim, key_heads
from rljob_worker.errors import InvalidJob

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def cache_bytes_per_token(config: PretrainedConfig, itemsize: int, tensor: int = 1) -> int:
    """Keys and values of all layers on one of `tensor` ranks that share them: 2 x layers x heads x head_dim x itemsize.

    Qwen3-8B in bfloat16: 2 x 36 x 8 x 128 x 2 = 147,456; on two ranks half of it each, on 16 as much as on 8.
    """
    config = config.get_text_config()
    return 2 * int(config.num_hidden_layers) * max(1, key_heads(config) // tensor) * head_dim(config) * itemsize


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """What a share of the free memory has room for, in tokens of the cache, masked ones included: rows x columns."""

    free_bytes: int
    fraction: float
    bytes_per_token: int

    @property
    def tokens(self) -> int:
        """With 40 GiB free, a fraction of 0.6 is 25,769,803,776 bytes: 174,762 tokens of Qwen3-8B, 42 rows of 4,096."""
        return int(self.free_bytes * self.fraction) // self.bytes_per_token

    def require_row(self, row_id: int, longest: int) -> None:
        """Raises InvalidJob, with the numbers, where there is no room for one row of n tokens."""
        if longest <= self.tokens:
            return
        raise InvalidJob(
            f"rollout.memoryFraction {self.fraction}: of {_gib(self.free_bytes)} that are free the cache gets "
            f"{_gib(self.tokens * self.bytes_per_token)}, but row {row_number(row_id)} of up to {longest} tokens needs "
            f"{_gib(longest * self.bytes_per_token)}; raise it, give the workers more memory, or lower "
            "rollout.maxResponseTokens"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
