"""Optimizer steps over this rank's shards, and where the optimizer's states wait between them.

rule         what is done with a gradient: an optimizer is a rule and a declaration in the api's catalogue
adamw        the one that is built in
states       the numbers that are kept of every weight, in the job's format
sharded      schedule, clip, buckets, offload and checkpoints, of any optimizer
host_offload tensors that wait on the host
"""

from rljob_worker.engines.fsdp.optimizer.rule import ByRows, KeptStates, UpdateRule
from rljob_worker.engines.fsdp.optimizer.sharded import ShardedOptimizer

__all__ = ["ByRows", "KeptStates", "ShardedOptimizer", "UpdateRule"]
