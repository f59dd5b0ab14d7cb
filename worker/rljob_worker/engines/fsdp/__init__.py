"""The TrainEngine on FSDP2: transformers models, `fully_shard`, data parallelism over any number of ranks."""

from rljob_worker.engines.fsdp.base_model import BaseModel
from rljob_worker.engines.fsdp.engine import FSDPEngine
from rljob_worker.engines.fsdp.settings import TrainSettings

__all__ = ["BaseModel", "FSDPEngine", "TrainSettings"]
