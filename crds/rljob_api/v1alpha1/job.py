"""`RLJob`: the object a user writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_api.v1alpha1.conversation import AgentGroupSpec, AgentSpec
from rljob_api.v1alpha1.dag import UPDATE_POLICY, DagSpec
from rljob_api.v1alpha1.data import DataSpec, ModelSpec, RewardSpec
from rljob_api.v1alpha1.infrastructure import (
    CodeSpec,
    DataBufferSpec,
    EnvVar,
    FailurePolicySpec,
    LifecycleSpec,
    MonitoringSpec,
    ObjectStoreSpec,
    SchedulingSpec,
    StorageSpec,
    SuccessPolicySpec,
    WorkerGroupSpec,
)
from rljob_api.v1alpha1.rollout import RolloutSpec
from rljob_api.v1alpha1.services import ServiceSpec
from rljob_api.v1alpha1.status import RLJobStatus
from rljob_api.v1alpha1.training import (
    CheckpointSpec,
    StopSpec,
    TrainingSpec,
    ValidationSpec,
    WeightSyncSpec,
)
from rljob_api.vocabulary.keys import ACTOR, CRITIC, MANAGED_BY, REFERENCE
from rljob_api.vocabulary.model import ApiModel, Items


class RLJobSpec(ApiModel):
    """What is to be trained, on what, how and where."""

    models: Items[ModelSpec] = Field(min_length=1, max_length=16)
    """The models. Those that an UpdatePolicy stage trains are the policies; without a dag there is one, `actor`."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Every random number of the job is a function of it. Default 0."""

    data: DataSpec
    """Prompts, and how many of them a step takes."""

    rewards: Items[RewardSpec] = Field(default=(), max_length=16)
    """Reward functions; the reward of a row is their weighted sum. Empty only when the dag has no Reward
    stage."""

    services: Items[ServiceSpec] = Field(default=(), max_length=16)
    """Models served beside the job on Ray Serve, for rewards to ask. Default: none."""

    algorithm: AlgorithmSpec
    """The learning rule."""

    worker_groups: Items[WorkerGroupSpec] = Field(default=(WorkerGroupSpec(name="train"),), min_length=1, max_length=8)
    """The pods, 1 to 8 groups. One group: every stage shares its accelerators. Default: one CPU worker."""

    generators: int | None = Field(default=None, ge=1, le=1024)
    """Pods that the elastic worker group is to have now, from its min to its max; it may change at any time, as by
    `kubectl scale rljob/NAME --replicas=3`. Nothing that is learned depends on it. Unset: its max."""

    training: TrainingSpec = TrainingSpec()
    """Optimizer steps."""

    rollout: RolloutSpec = RolloutSpec()
    """How responses are generated."""

    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How new weights get from training to generation."""

    validation: ValidationSpec = ValidationSpec()
    """How and when the policy is measured on the validation data."""

    dag: DagSpec | None = None
    """The stages of a step. Unset: the algorithm's own pipeline, which `rljob plan` shows."""

    code: CodeSpec | None = None
    """Where the user's Python is, when it is not in the image. Locally it is the folder of the YAML file. Its
    modules are searched after everything that is installed, so none may be named like one of these."""

    storage: StorageSpec | None = None
    """Where data is read and results are written. Unset: the pod's own disk."""

    env: Items[EnvVar] = Field(default=(), max_length=256)
    """Environment variables of every worker; not those by which a launcher tells it who it is, such as RANK."""

    checkpoint: CheckpointSpec = CheckpointSpec()
    """When training state is written, what is kept, and where training starts."""

    stop: StopSpec = StopSpec()
    """When the job is done."""

    data_buffer: DataBufferSpec = DataBufferSpec()
    """The sidecar that exchanges rows between pods."""

    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """When a gang that failed starts again."""

    success_policy: SuccessPolicySpec = SuccessPolicySpec()
    """Whose end is the end of the job."""

    lifecycle: LifecycleSpec = LifecycleSpec()
    """Deadlines and cleaning up."""

    scheduling: SchedulingSpec = SchedulingSpec()
    """How pods find their hosts."""

    image_pull_secrets: Items[str] = Field(default=(), max_length=16)
    """Names of Secrets with which images are pulled, besides those of the operator's configuration. Only a
    cluster looks at it."""

    pod_security: Literal["Restricted", "Baseline", "Privileged"] = "Restricted"
    """The Pod Security Standard that the pods are made to meet. What the accelerator needs beyond it is refused
    before any pod is made. Only a cluster looks at it. Default Restricted."""

    monitoring: MonitoringSpec = MonitoringSpec()
    """Where metrics go."""

    suspend: bool = False
    """Whether the job gives its pods back, after a checkpoint, and waits. Only a cluster looks at it.
    Default false."""

    managed_by: str = MANAGED_BY
    """Who reconciles the job. Default rljob.dev/operator; the operator leaves jobs of others alone."""

    @property
    def claim(self) -> str | None:
        """The volume claim that is mounted at /workspace."""
        return None if self.storage is None else self.storage.persistent_volume_claim

    @property
    def elastic_group(self) -> WorkerGroupSpec | None:
        """The group whose pods come and go while the others train."""
        return next((group for group in self.worker_groups if group.elastic is not None), None)

    @property
    def wanted_generators(self) -> int:
        """Pods that the elastic group is to have, within its bounds; 0 without one."""
        group = self.elastic_group
        if group is None or group.elastic is None:
            return 0
        asked = group.elastic.max if self.generators is None else self.generators
        return min(max(asked, group.elastic.min), group.elastic.max)

    @property
    def object_store(self) -> ObjectStoreSpec | None:
        """Where checkpoints go in place of the volume."""
        return None if self.storage is None else self.storage.object_store

    @property
    def policies(self) -> tuple[str, ...]:
        """The models that UpdatePolicy stages train, in the order of these stages; without stages those that play the
        agents of conversations."""
        if self.dag is None:
            return self.agent_policies or (ACTOR,)
        updates = (stage for stage in self.dag.stages if stage.run == UPDATE_POLICY)
        return tuple(dict.fromkeys(model for stage in updates for model in stage.models or (ACTOR,)))

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """Those who have rows of their own in conversations; none in jobs without teams."""
        conversation = self.rollout.conversation
        return () if conversation is None else conversation.agents

    @property
    def agent_policies(self) -> tuple[str, ...]:
        """The policies that play agents, in the order of these; none without agents."""
        return tuple(dict.fromkeys(agent.policy for agent in self.agents))

    @property
    def is_team_of_policies(self) -> bool:
        """Whether rows of several policies are in one trajectory."""
        return len(self.agent_policies) > 1

    def beside(self, kind: str, policy: str) -> str:
        """The name of a policy's own reference or critic, where nobody names one. kind: REFERENCE or CRITIC."""
        return f"{kind}_{policy}" if self.is_team_of_policies else kind

    def critic_of(self, agent: AgentSpec) -> str:
        """The model that values the rows of an agent."""
        return agent.critic or self.beside(CRITIC, agent.policy)

    def agents_of(self, model: str) -> frozenset[int]:
        """Places of the agents whose rows a model plays, values, or is the reference of."""
        return frozenset(
            at
            for at, agent in enumerate(self.agents)
            if model in (agent.policy, self.critic_of(agent), self.beside(REFERENCE, agent.policy))
        )

    @property
    def derived_models(self) -> tuple[str, ...]:
        """Models that stages may name although nobody lists them: copies of the policy, in a job with one, or of the
        policies of a team."""
        return tuple(self._origins)

    @property
    def _origins(self) -> dict[str, str]:
        """By derived model, the policy whose copy it is."""
        listed, policies = {model.name for model in self.models}, self.policies
        if len(policies) > 1 and not self.is_team_of_policies:
            return {}
        copies = {self.beside(kind, policy): policy for kind in (REFERENCE, CRITIC) for policy in policies}
        return {name: policy for name, policy in copies.items() if policy in listed and name not in listed}

    def source_of(self, model: str) -> ModelSpec:
        """What `model` starts from; one that nobody lists starts as a copy of a policy (`derived_models`).

        Raises KeyError for a model that the job does not have.
        """
        listed = {model.name: model for model in self.models}
        return listed[self._origins.get(model, model)]

    def with_rewards(self, names: Sequence[str]) -> RLJobSpec:
        """The job with these of its rewards alone, in this order; itself without names."""
        if not names:
            return self
        listed = {reward.name: reward for reward in self.rewards}
        chosen = tuple(listed[name] for name in dict.fromkeys(names) if name in listed)
        return self.model_copy(update={"rewards": chosen})

    @property
    def num_rows(self) -> int:
        """Rows of one step, over the whole job."""
        return self.data.batch_size * self.algorithm.group_size

    @property
    def rows_per_trajectory(self) -> int:
        """Rows that a trajectory may have: one, one for each decision, or as many as its conversation may open for all
        of its agents."""
        return self.rows_per_agent * self.num_agents

    @property
    def rows_per_agent(self) -> int:
        """Rows that each agent may have of a trajectory: row_id // rows_per_agent % num_agents is a row's agent."""
        conversation, simulator = self.rollout.conversation, self.rollout.simulator
        if simulator is not None:
            return simulator.num_decisions
        return 1 if conversation is None else conversation.max_rows

    @property
    def most_sampled_tokens(self) -> int:
        """The most tokens that a trajectory may sample: of one response, or of all rows of a conversation."""
        conversation, longest = self.rollout.conversation, self.rollout.max_response_tokens
        if conversation is None:
            return longest
        return self.rows_per_trajectory * (conversation.max_tokens or longest)

    @property
    def serves_pods(self) -> bool:
        """Whether agents of other pods ask workers for turns of the policy."""
        conversation = self.rollout.conversation
        return conversation is not None and conversation.endpoint.listen == "Pods"

    @property
    def agent_group(self) -> AgentGroupSpec | None:
        """Pods of agents beside those of the job."""
        conversation = self.rollout.conversation
        pool = None if conversation is None else conversation.agent_pool
        return None if pool is None else pool.worker_group

    @property
    def sees(self) -> bool:
        """Whether policies are shown pictures or videos: of the data, by tools and environments, or by a simulator."""
        conversation, simulator = self.rollout.conversation, self.rollout.simulator
        if simulator is not None:
            return bool(simulator.cameras)
        shows = self.data.images_column is not None or self.data.videos_column is not None
        return shows or (conversation is not None and conversation.pictures)

    @property
    def validates(self) -> bool:
        """Whether policies are measured: on data, or in a simulator's tasks."""
        simulator = self.rollout.simulator
        return bool(self.data.validation) or (simulator is not None and simulator.evaluation is not None)

    @property
    def num_agents(self) -> int:
        """Agents that have rows of their own in a trajectory: 1 in jobs without teams."""
        return max(1, len(self.agents))

    @property
    def rewards_agents(self) -> bool:
        """Whether agents are rewarded apart."""
        conversation = self.rollout.conversation
        return bool(self.agents) and conversation is not None and conversation.reward == "PerAgent"

    @property
    def longest_row(self) -> int:
        """The most tokens that a prompt and its response have together."""
        longest = self.data.max_prompt_tokens + self.rollout.max_response_tokens
        return min(longest, self.rollout.max_sequence_tokens or longest)

    @property
    def longest_rows(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(prompt, response) tokens of the longest rows: of those with the longest prompts, and the longest responses.
        Whatever grows with both lengths is most of one of the two."""
        prompt, response = self.data.max_prompt_tokens, self.rollout.max_response_tokens
        return (prompt, self.longest_row - prompt), (max(1, self.longest_row - response), response)

    @property
    def mini_batch_rows(self) -> int:
        """Rows of one optimizer step, over the whole job."""
        return self.training.mini_batch_rows or self.num_rows

    @property
    def num_mini_batches(self) -> int:
        """Mini-batches of one pass over a step's rows."""
        return self.num_rows // self.mini_batch_rows

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps of one step."""
        return self.num_mini_batches * self.algorithm.update_epochs


class Metadata(ApiModel):
    """The part of a Kubernetes object's metadata that a user writes."""

    model_config = ConfigDict(str_max_length=None)  # the API server bounds it; kubectl keeps the whole object in here

    name: str
    """The job's name: a DNS label of at most 40 characters."""

    namespace: str | None = None
    """The namespace. Unset: the current one; locally it means nothing."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the object."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the object."""


class RLJob(ApiModel):
    """A reinforcement-learning job."""

    api_version: Literal["rljob.dev/v1alpha1"]
    """`rljob.dev/v1alpha1`."""

    kind: Literal["RLJob"]
    """`RLJob`."""

    metadata: Metadata
    """Name, namespace, labels and annotations."""

    spec: RLJobSpec
    """What is to be trained, on what, how and where."""

    status: RLJobStatus | None = Field(default=None, exclude=True)
    """What the operator reports. In a file it is of no account."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name
