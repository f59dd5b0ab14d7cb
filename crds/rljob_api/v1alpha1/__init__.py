"""The types of `rljob.dev/v1alpha1`."""

from rljob_api.v1alpha1.algorithm import (
    AdvantageSpec,
    AlgorithmSpec,
    CriticSpec,
    KLSpec,
    LossSpec,
    OverlongSpec,
)
from rljob_api.v1alpha1.dag import Balance, DagSpec, StageSpec
from rljob_api.v1alpha1.data import DatasetSpec, DataSpec, ModelSpec, RewardSpec
from rljob_api.v1alpha1.infrastructure import (
    AcceleratorSpec,
    CodeSpec,
    DataBufferSpec,
    EnvVar,
    FailurePolicySpec,
    FailureRule,
    LifecycleSpec,
    MonitoringSpec,
    SchedulingSpec,
    StorageSpec,
    TopologySpec,
    WorkerGroupSpec,
)
from rljob_api.v1alpha1.job import Metadata, RLJob, RLJobSpec
from rljob_api.v1alpha1.training import (
    CheckpointSpec,
    RolloutParallelism,
    RolloutSpec,
    StopSpec,
    TrainingParallelism,
    TrainingSpec,
    ValidationSpec,
)

__all__ = [
    "AcceleratorSpec",
    "AdvantageSpec",
    "AlgorithmSpec",
    "Balance",
    "CheckpointSpec",
    "CodeSpec",
    "CriticSpec",
    "DagSpec",
    "DataBufferSpec",
    "DataSpec",
    "DatasetSpec",
    "EnvVar",
    "FailurePolicySpec",
    "FailureRule",
    "KLSpec",
    "LifecycleSpec",
    "LossSpec",
    "Metadata",
    "ModelSpec",
    "MonitoringSpec",
    "OverlongSpec",
    "RLJob",
    "RLJobSpec",
    "RewardSpec",
    "RolloutParallelism",
    "RolloutSpec",
    "SchedulingSpec",
    "StageSpec",
    "StopSpec",
    "StorageSpec",
    "TopologySpec",
    "TrainingParallelism",
    "TrainingSpec",
    "ValidationSpec",
    "WorkerGroupSpec",
]
