"""`Plan`: all that workers know of the cluster.  Sizes, schedules, meshes and edges; no address, port or
attempt."""

from __future__ import annotations

import hashlib
import json
from math import ceil
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from rljob_api.catalogue.algorithms import needs_whole_trajectories
from rljob_api.catalogue.stages import REWARD_MODEL, STAGES
from rljob_api.memory.phases import GroupMemory
from rljob_api.pipeline.meshes import Mesh, MeshCost
from rljob_api.planning.serving import ServicePlan
from rljob_api.v1alpha1 import AdapterSpec, Balance, OffloadSpec, Precision, RLJobSpec
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.model import ApiModel, Items

SCHEMA_VERSION = 1

Transport = Literal["Local", "Buffer"]
WeightTransport = Literal["InProcess", "DataBuffer", "Collective"]


class ElasticPlan(ApiModel):
    """How many pods an elastic group may have. How many it has now no plan says."""

    min: int
    max: int


class GroupPlan(ApiModel):
    """A worker group: `replicas` pods with `workers_per_host` workers each, and what each of them does in
    a step."""

    name: str
    replicas: int
    """Pods; of an elastic group the most that there may be."""
    workers_per_host: int
    device: str
    """The torch device type: cpu, cuda, npu ..."""
    backend: str
    """The torch.distributed backend: gloo, nccl, hccl ..."""
    profile: str
    device_memory: str | None = None
    """What each of its accelerators has, as the profile says."""
    schedule: Items[str]
    """The stages that run here, in order. Those with `generated_in` are in the schedules of both groups: the elastic
    one runs them, and the workers of the other get their rows in that place."""
    elastic: ElasticPlan | None = None
    """Set where the pods are guests: they come and go one by one, and belong to no world, tree or commit."""

    @property
    def num_workers(self) -> int:
        """Workers of the group; of an elastic one the most that there may be."""
        return self.replicas * self.workers_per_host


class EnginePlan(ApiModel):
    """One model in one group under one library."""

    name: str
    kind: Literal["Train", "Rollout"]
    library: str
    """FSDP or Megatron, or a rollout engine of the catalogue."""
    model: str
    path: str
    """Where the model's weights are, as written in the job."""
    initialise: Literal["Weights", "Random"] = "Weights"
    """Whether its weights are read from there, or only its configuration."""
    group: str
    mesh: Mesh
    trainable: bool
    """Whether a stage updates the model, so that the engine needs an optimizer."""
    adapter: AdapterSpec | None = None
    """What of the model is trained, where that is not all of it."""
    base_of: str | None = None
    """The engine whose model this is without the adapter: it has no weights of its own."""
    recomputes: bool = False
    """Whether activations are computed again in the backward pass: as the job asks, or as the plan decides for it."""
    compiles: bool = False
    """Whether decoder layers are compiled: as the job asks, or as the plan decides for it. Where workers have no
    compiler, or the model turns out to have experts, only a job that asks for it fails."""
    offload: OffloadSpec = OffloadSpec()
    """What of it waits in the memory of the host. Nothing on CPUs; with its parameters its optimizer, too."""


class StagePlan(ApiModel):
    """A stage with everything settled: where it runs, on what layout, which columns it takes and gives."""

    name: str
    run: str
    group: str
    models: Items[str]
    engines: Items[str]
    """Names of the engines it uses, one per model."""
    mesh: Mesh
    """How its rows are laid out: its engine's mesh, or data parallelism over the whole group."""
    after: Items[str]
    reads: Items[str]
    """Columns it gets, under the names they have in the job (after `rename`)."""
    writes: Items[str]
    rename: dict[str, str] = Field(default_factory=dict)
    """The stage's own name of a column -> the column of the job it reads in its place."""
    needs_groups: bool
    """Whether the rows of one prompt must come together."""
    balance: Balance
    scatters_rows: bool = False
    """Whether its rows lie on whatever worker made them: edges from it are routed by what every worker has."""
    generated_in: str | None = None
    """The elastic group whose guests run it. Its rows lie in `group`, on `mesh`, once they are received there."""
    options: dict[str, Any] = Field(default_factory=dict)


class EdgePlan(ApiModel):
    """Columns that go from the stage that writes them to a stage that reads them."""

    name: str
    """`producer->consumer`."""
    producer: str
    consumer: str
    columns: Items[str]
    """Empty for an edge that only orders."""
    transport: Transport
    """`Local`: the Python object is handed on. `Buffer`: rows go through the data buffers."""


class WeightEdge(ApiModel):
    """Weights that go from the engine that trains a model to one that generates with it, after the update."""

    name: str
    """`weights/MODEL`."""
    model: str
    source: str
    target: str
    transport: WeightTransport
    """`InProcess`: from engine to engine of one worker. `DataBuffer`: through shared memory of the hosts. `Collective`:
    by broadcasts on process groups across worker groups."""


class Plan(ApiModel):
    """What runs where, and what crosses between. The same for every worker; its size does not grow with
    the number of hosts."""

    schema_version: int = SCHEMA_VERSION
    job: str
    """The job's name."""
    groups: Items[GroupPlan]
    engines: Items[EnginePlan]
    stages: Items[StagePlan]
    """In topological order: longest-path level, then declaration."""
    edges: Items[EdgePlan]
    weights: Items[WeightEdge]
    lead_group: str
    """The group that updates the first policy. Its rank 0 writes metrics and decides when to stop."""
    spec: RLJobSpec
    services: Items[ServicePlan] = ()
    """The models beside the job, in its order."""
    memory: Items[GroupMemory] = ()
    """What a worker of each group has in memory, phase by phase."""
    meshes: Items[MeshCost] = ()
    """What the axes of meshes cost over which models are trained and scored, where their shapes are at hand."""
    rows_per_trajectory: int = Field(1, ge=1)
    """Row numbers of a trajectory: row_id = trajectory_id * rows_per_trajectory + index of the row in it. A trajectory
    may have fewer rows."""

    @model_validator(mode="after")
    def trajectories_fit_where_they_must(self) -> Plan:
        """Where a loss has one ratio for a trajectory, the longest one is in one micro-batch."""
        several, loss = self.rows_per_trajectory, self.spec.algorithm.loss.name
        if several == 1 or not needs_whole_trajectories(loss):
            return self
        longest = several * self.spec.longest_row
        cp = min(self.trainer_of(policy).mesh.cp for policy in self.spec.policies)
        if longest > (room := self.spec.training.tokens_per_micro_batch * cp):
            raise ValueError(
                f"a trajectory of up to {several} rows of up to {self.spec.longest_row} tokens has {longest}, and the "
                f"loss {loss} needs all of it in one micro-batch of {room} tokens (training.tokensPerMicroBatch"
                + (f" x context {cp}" if cp > 1 else "")
                + "): raise tokensPerMicroBatch, allow fewer or shorter rows, or take a loss with a ratio per token"
            )
        return self

    @property
    def gang(self) -> tuple[GroupPlan, ...]:
        """The groups whose pods start, step and end together: all but the elastic one."""
        return tuple(group for group in self.groups if group.elastic is None)

    @property
    def elastic_group(self) -> GroupPlan | None:
        """The group whose pods are guests."""
        return next((group for group in self.groups if group.elastic is not None), None)

    @property
    def num_workers(self) -> int:
        """Workers of the gang."""
        return sum(group.num_workers for group in self.gang)

    @property
    def precision(self) -> Precision:
        """Number format in which every model is computed."""
        precision = self.spec.training.precision
        assert precision != "Auto", "the planner settles it"
        return precision

    @property
    def staleness(self) -> int:
        """Steps that generating weights may be behind the trained ones."""
        return self.spec.rollout.max_staleness

    @property
    def num_versions(self) -> int:
        """Versions of a policy that may exist at once: one where generation waits for each, else those that steps under
        way are drawn with and those that an uncommitted checkpoint needs (2 (S + 1) for a staleness of S)."""
        return 2 * (self.staleness + 1) if self.staleness else 1

    @property
    def verdict_delay(self) -> int:
        """The verdict on a step governs the end of the step that is this many steps later."""
        return self.staleness + 1

    def group(self, name: str) -> GroupPlan:
        """The group of this name; KeyError when there is none."""
        return _named(self.groups, name)

    def stage(self, name: str) -> StagePlan:
        """The stage of this name; KeyError when there is none."""
        return _named(self.stages, name)

    def engine(self, name: str) -> EnginePlan:
        """The engine of this name; KeyError when there is none."""
        return _named(self.engines, name)

    def trainer_of(self, model: str) -> EnginePlan:
        """The engine that trains a model of the job; KeyError when there is none."""
        return {engine.model: engine for engine in self.engines if engine.trainable}[model]

    def policy_of(self, stage: str) -> str:
        """The policy that a stage works for: the one it trains, or else the one that generates its rows."""
        if len(self.spec.policies) == 1:
            return self.spec.policies[0]
        result = self.stage(stage)
        if result.run == UPDATE_POLICY:
            return result.models[0]
        if (only := self._only_policy_of(result)) is not None:
            return only
        while result.after:  # all that comes before a stage has rows of one source
            result = self.stage(result.after[0])
        return result.models[0]

    def label_of(self, policy: str) -> str | None:
        """What metrics and samples of a policy have beside their names: its own, where there are several."""
        return policy if len(self.spec.policies) > 1 else None

    def label_of_stage(self, stage: str) -> str | None:
        """What metrics and samples of a stage have beside their names: its policy, where there are several; nothing
        where it works with the rows of all policies of a team."""
        if self.spec.is_team_of_policies and self._only_policy_of(self.stage(stage)) is None:
            return None
        return self.label_of(self.policy_of(stage))

    def _only_policy_of(self, stage: StagePlan) -> str | None:
        """In a team of several policies, the one whose rows alone a stage works with; None where there are more."""
        if not self.spec.is_team_of_policies or len(stage.models) != 1:
            return None
        agents = self.spec.agents_of(stage.models[0])
        policies = {self.spec.agents[at].policy for at in agents}
        return policies.pop() if len(policies) == 1 else None

    def spec_of(self, policy: str) -> RLJobSpec:
        """The job with the rewards of this policy alone."""
        stages = self.spec.dag.stages if self.spec.dag is not None else ()
        chosen = [
            name for stage in stages if stage.rewards and self.policy_of(stage.name) == policy for name in stage.rewards
        ]
        return self.spec.with_rewards(chosen)

    def service(self, name: str) -> ServicePlan:
        """The model beside the job of this name; KeyError when there is none."""
        return _named(self.services, name)

    def edge(self, name: str) -> EdgePlan:
        """The data edge of this name; KeyError when there is none."""
        return _named(self.edges, name)

    def inputs(self, stage: str) -> tuple[EdgePlan, ...]:
        """The edges that end in `stage`."""
        return tuple(edge for edge in self.edges if edge.consumer == stage)

    def outputs(self, stage: str) -> tuple[EdgePlan, ...]:
        """The edges that begin in `stage`."""
        return tuple(edge for edge in self.edges if edge.producer == stage)

    def has_value_head(self, engine: EnginePlan) -> bool:
        """Whether a stage asks this engine for a number in place of a token."""
        heads = {name for name, stage in STAGES.items() if stage.has_value_head}
        return any(stage.run in heads and engine.name in stage.engines for stage in self.stages)

    def is_reward_model(self, engine: EnginePlan) -> bool:
        """Whether that number is a reward."""
        return any(stage.run == REWARD_MODEL and engine.name in stage.engines for stage in self.stages)

    def begun_in(self, reward: str) -> str | None:
        """The Rollout stage whose rows a Reward stage may begin with one by one, while others are generated; None
        where it has to wait for its turn.

        It may where all it reads and waits for is that stage on the same worker, and models of rewards, of which its
        functions know nothing: nobody has a chance to write responses anew, or to prepare what its functions look for.
        Where ranks take leases, what models say comes to the rank that has a row by its number, and so does the row.
        """
        stage = self.stage(reward)
        if self.spec.rollout.partial is not None:  # rows have their numbers only when the step has its batch
            return None
        inputs = [edge for edge in self.inputs(reward) if self.stage(edge.producer).run != REWARD_MODEL]
        if len(inputs) != 1 or inputs[0].transport != "Local" or stage.rename:
            return None
        return inputs[0].producer if self.stage(inputs[0].producer).run == "Rollout" else None

    def begins_rewards(self, stage: str) -> bool:
        """Whether a stage that generates has rewards begun: its own, or those of a Reward stage."""
        rewards = (stage.name for stage in self.stages if stage.run == "Reward")
        return self.stage(stage).run == "Sample" or stage in map(self.begun_in, rewards)

    def draws_in_rounds(self, stage: StagePlan) -> bool:
        """Whether a stage that generates draws until it has a batch, and not a batch at once."""
        return stage.run == "Sample" or self.spec.rollout.partial is not None

    def most_rounds(self, stage: StagePlan) -> int:
        """Rounds that a generation step has at most.

        With `rollout.partial` a group that was drawn in a round is complete after as many more as its longest response
        needs, and only then can be rejected and replaced; one of conversations may be drawn again once.
        """
        partial, draws = self.spec.rollout.partial, 1
        if stage.run == "Sample":
            draws = self.spec.algorithm.sampling.max_rounds
        if partial is None:
            return draws
        attempts = 1 if self.spec.rollout.conversation is None else 2
        return draws - 1 + attempts * ceil(self.spec.most_sampled_tokens / partial.tokens_per_round)

    def is_leased(self, stage: StagePlan) -> bool:
        """Whether workers take what they draw in a stage as leases, and not by rank: where it generates in a group that
        trains nothing, and its rows lie where they were made."""
        entry = STAGES.get(stage.run)
        generates = entry is not None and entry.use == "Generates"
        return generates and stage.scatters_rows and not self.trains(stage.group)

    def trains(self, group: str) -> bool:
        """Whether a group trains a model."""
        return any(engine.kind == "Train" and engine.trainable and engine.group == group for engine in self.engines)

    def generates(self, group: str) -> bool:
        """Whether a group has an engine that generates."""
        return any(engine.kind == "Rollout" and engine.group == group for engine in self.engines)

    def reports_validation(self, group: str) -> bool:
        """Whether workers of a group of the gang report what was validated: those who generate, or own the leases of
        guests, who do."""
        return self.generates(group) or (self.elastic_group is not None and group == self.lead_group)

    def worker_offset(self, group: str) -> int:
        """The ordinal, over all groups, of rank 0 of `group`; guests come after the gang."""
        offset = 0
        for item in sorted(self.groups, key=lambda item: item.elastic is not None):
            if item.name == group:
                return offset
            offset += item.num_workers
        raise KeyError(group)

    def hash(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def canonical_json(self) -> str:
        """JSON with sorted keys and no blanks: equal plans give equal text."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))


Named = TypeVar("Named", GroupPlan, StagePlan, EnginePlan, ServicePlan, EdgePlan)


def _named(items: tuple[Named, ...], name: str) -> Named:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(name)
