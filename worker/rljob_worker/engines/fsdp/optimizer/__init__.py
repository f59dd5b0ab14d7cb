"""Optimizer steps over this rank's shards, and where the optimizer's states wait between them."""

from rljob_worker.engines.fsdp.optimizer.sharded_adamw import ShardedAdamW

__all__ = ["ShardedAdamW"]
