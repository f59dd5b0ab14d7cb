"""How a job's conversations are played: who takes turns, with which tools and environments, and what bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rljob_api.v1alpha1.data import NAME, Name
from rljob_api.vocabulary.keys import ACTOR
from rljob_api.vocabulary.model import ApiModel, Items
from rljob_api.vocabulary.network import NetworkEntry
from rljob_api.vocabulary.quantity import QUANTITY

SHIPPED_CONVERSATIONS = "rljob_worker.conversations:"
"""The module of the conversations that come with rljob."""
PYTHON_TOOL = "rljob_worker.sandbox.python_tool:python"
"""The tool that runs what a model writes."""

ToolName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=64, json_schema_extra={"maxLength": 64})
]
"""The form of names by which a model calls a function."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
Confinement = Literal["Required", "Preferred", "Off"]
OnLimit = Literal["Answer", "Fail"]


class CallLimitsSpec(ApiModel):
    """What one call into the job's own code may take, and what it may see."""

    timeout_seconds: float = Field(default=30.0, gt=0, le=86400)
    """How long a call may take, in seconds; a longer one is ended with its processes. Default 30."""

    memory: str = Field(default="1Gi", pattern=QUANTITY)
    """Memory of a call and the processes that it starts. Default 1Gi."""

    max_processes: int = Field(default=16, ge=1, le=4096)
    """Processes and threads that a call may have at once. Default 16."""

    max_output: str = Field(default="1Mi", pattern=QUANTITY)
    """Bytes of what a call returns; more is an error. Default 1Mi."""

    environment_variables: Items[VariableName] = Field(default=(), max_length=64)
    """Variables of the worker's environment that it sees, such as the key of a search engine; besides these it sees
    none of the job's. Default: none."""

    network: Items[NetworkEntry] | None = Field(default=None, max_length=64)
    """Where it may connect to, as `host:port`. Unset: as rollout.conversation.network has it."""

    confinement: Literal["Inherit", "Required", "Preferred", "Off"] = "Inherit"
    """How it is confined. Inherit, the default: as rollout.conversation.confinement has it."""

    readable: Items[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(default=(), max_length=64)
    """Files and folders that it may read while it is confined, besides Python, what is installed and the job's own
    modules: an index, a model. Relative paths begin where those of data do. Default: none."""


class ToolSpec(CallLimitsSpec):
    """A function that the model may call."""

    name: ToolName | None = None
    """What the model calls it. Unset: the name of the function."""

    run: str = Field(min_length=1)
    """The function, as `module:function`. Its types and docstring make the schema that the model is shown."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments that the model does not see."""

    isolated: bool = True
    """Whether each trajectory that calls it has a process of its own, forked for it, with a temporary folder as its
    working directory; both go with the trajectory, and all that is isolated in a trajectory shares them. False:
    trajectories share `processes`, with their modules and folders. Default true."""

    stateful: bool | None = None
    """Whether later calls of a trajectory count on what earlier ones left in its process and folder. Then calls are
    made again where a step is repeated, and a call that takes too long costs the trajectory. Unset: false for a
    function, whose process is replaced where it has to be ended; true for the tool that runs what a model writes. A
    class always is."""

    on_limit: Literal["Auto", "Answer", "Fail"] = "Auto"
    """What becomes of a trajectory whose call takes longer than timeoutSeconds or more than memory. Answer: the model
    reads that it did, and goes on. Fail: the trajectory failed. Auto, the default: Answer for a function; Fail for a
    class, whose object goes with the call, and for what is stateful."""

    @property
    def is_stateful(self) -> bool:
        """Whether later calls of a trajectory count on earlier ones, also where it is a function."""
        return self.run == PYTHON_TOOL if self.stateful is None else self.stateful


class EnvironmentSpec(CallLimitsSpec):
    """A world that answers the model's actions: a class with `reset(seed, **columns)` and `step(text)`."""

    name: ToolName
    """What the data's column `environment` calls it, where a job has several."""

    run: str = Field(min_length=1)
    """The class, as `module:Class`. Each trajectory has an instance of its own."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""

    isolated: bool = False
    """Whether each trajectory has a process and a temporary folder of its own for it, as tools have. Default false:
    trajectories share `processes`, with their modules and folders."""


class ProgramSpec(CallLimitsSpec):
    """An agent that is a program of its own, started for each trajectory. It finds the policy at OPENAI_BASE_URL, with
    OPENAI_API_KEY, under the name RLJOB_MODEL, and its task in the file RLJOB_TASK_FILE."""

    command: Items[Annotated[str, Field(min_length=1)]] = Field(min_length=1, max_length=64)
    """Program and arguments. `python` is the worker's own interpreter. `{prompt}`, the last text of the prompt,
    `{model}`, `{base_url}`, `{task_file}` and the `{name}` of one of columns stand for their values."""

    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Variables of its environment, besides those that it finds the policy by. Default: none."""

    working_directory: str | None = Field(default=None, min_length=1)
    """The folder that it begins in. Unset: one of its own, which is deleted with it, and the only one it may write
    in."""

    timeout_seconds: float = Field(default=600.0, gt=0, le=86400)
    """How long a trajectory may take, in seconds; a program that takes longer is ended. Default 600."""

    max_processes: int = Field(default=64, ge=1, le=4096)
    """Processes and threads that it may have at once. Default 64."""


class AgentGroupSpec(ApiModel):
    """Pods of agents, which run beside those of the job, with an image of the user's."""

    replicas: int = Field(default=1, ge=1, le=4096)
    """Pods. Default 1."""

    template: dict[str, Any] = Field(default_factory=dict)
    """A pod template merged over the generated one, in which the container is `agent`: its image, command, resources
    and volumes. Only a cluster looks at it."""


class AgentPoolSpec(CallLimitsSpec):
    """Agents that live longer than a trajectory. Each asks the endpoint for one after another (`POST /rljob/v1/task`),
    plays it with the key that it gets, and says how it ended (`POST /rljob/v1/result`)."""

    command: Items[Annotated[str, Field(min_length=1)]] = Field(default=(), max_length=64)
    """Program and arguments of agents that each generating worker starts beside it, and starts again where they end.
    `python` is the worker's own interpreter. Empty: agents run elsewhere and find the endpoint at endpoint.port."""

    worker_group: AgentGroupSpec | None = None
    """Pods of agents, in place of command. They find the endpoints of all generating workers in RLJOB_ENDPOINTS, the
    first of them in RLJOB_ENDPOINT, and RLJOB_AGENT_TOKEN. Needs endpoint.listen Pods. Unset: none."""

    replicas: int = Field(default=1, ge=1, le=256)
    """With command: agents of each generating worker. Default 1."""

    environment: dict[VariableName, str] = Field(default_factory=dict)
    """With command: variables of its environment, besides RLJOB_ENDPOINT and RLJOB_AGENT_TOKEN, by which agents find
    their tasks. Default: none."""

    working_directory: str | None = Field(default=None, min_length=1)
    """With command: the folder that it begins in. Unset: one of its own."""

    timeout_seconds: float = Field(default=600.0, gt=0, le=86400)
    """How long a trajectory may take, in seconds, from when an agent takes it; one that takes longer has failed.
    Default 600."""

    claim_seconds: float = Field(default=600.0, gt=0, le=86400)
    """How long a trajectory may wait for an agent that takes it, in seconds; after that it has failed. Default 600."""

    max_processes: int = Field(default=64, ge=1, le=4096)
    """Processes and threads that an agent may have at once. Default 64."""


ReliedOn = Literal[
    "min_tokens",
    "ignore_eos",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "top_logprobs",
]
"""Parameters of calls that say what an answer has to be, and that no engine of a rollout does."""


class EndpointSpec(ApiModel):
    """What programs may ask of the policy, and where."""

    port: int | None = Field(default=None, ge=1024, le=65000)
    """The port at which the first worker of a host answers; the next one has the next port. Unset: one that is free,
    which only programs that the worker starts are told."""

    listen: Literal["Loopback", "Pods"] = "Loopback"
    """Who may connect to `port`. Loopback, the default: processes of the pod, over HTTP. Pods: other pods of the job as
    well, over HTTPS, with the certificates that dataBuffer.tls has issued; programs that the worker starts stay on
    loopback, at a port that is free."""

    other_sampling: Literal["Clamp", "Refuse"] = "Clamp"
    """What becomes of sampling that is not the job's, such as a temperature, a seed or a stop: `Clamp`, the default,
    passes it over; `Refuse` answers with an error that names it."""

    passed_over: Items[ReliedOn] = Field(default=(), max_length=16)
    """Parameters of calls that are passed over although their callers rely on them, such as `response_format` of agents
    that check answers themselves. A call with one that is not listed is refused by name. Default: none."""

    models: Items[Annotated[str, Field(min_length=1, max_length=128)]] = Field(default=(), max_length=16)
    """Other names by which programs may call the policy, such as one that is written in their code. Default: none."""

    wait_seconds: float = Field(default=600.0, gt=0, le=86400)
    """How long a call may wait for its answer, in seconds; after that it is refused and may be made again. Default
    600."""


class MCPServerSpec(CallLimitsSpec):
    """A server of the Model Context Protocol whose tools the model may call. Needs `pip install 'rljob[mcp]'`. One that
    is started by `command` is confined as tools are, with its memory, processes and network."""

    name: ToolName
    """What metrics and messages call it."""

    command: Items[Annotated[str, Field(min_length=1)]] = Field(default=(), max_length=64)
    """A server that each worker starts and speaks to over its standard input and output: program and arguments.
    Either this or `url`."""

    url: str | None = Field(default=None, min_length=1)
    """A server that runs elsewhere and is spoken to over HTTP. Either this or `command`."""

    tools: Items[ToolName] = Field(default=(), max_length=256)
    """Names of those tools of the server that the model is shown. Empty: all."""

    token_variable: VariableName | None = None
    """With url: the variable of the worker's environment with the token that calls carry. Unset: none."""

    max_processes: int = Field(default=64, ge=1, le=4096)
    """With command: processes and threads that the server may have at once. Default 64."""

    on_limit: OnLimit = "Answer"
    """What becomes of a trajectory whose call takes longer. Answer, the default: the model reads that it did, and goes
    on. Fail: the trajectory failed."""


TASK = "task"
"""What an agent may hear besides other agents: the prompt."""


class AgentSpec(ApiModel):
    """One who takes turns in a team's conversations, with rows of its own in every trajectory."""

    name: Name
    """What others hear it called, and metrics, samples and `order` call it."""

    policy: str = ACTOR
    """The policy that plays it; several agents may have one. Default `actor`."""

    critic: Annotated[str, Field(pattern=NAME)] | None = None
    """The model that values its rows, where the algorithm has a critic; agents of several policies may have one in
    common. Unset: `critic` in a job with one policy, else `critic_` and the policy's name, which starts as its copy."""

    system: str | None = Field(default=None, min_length=1)
    """The system message that its rows begin with. Unset: none."""

    hears: Items[str] | None = Field(default=None, max_length=17)
    """What it is shown: `task` for the prompt, and names of agents whose turns it hears. Unset: the prompt and all
    others."""

    stop_word: str | None = Field(default=None, min_length=1)
    """A text with which it ends the conversation: after a turn in which it says it nobody takes another. Unset:
    none."""

    @property
    def hears_task(self) -> bool:
        """Whether it is shown the prompt."""
        return self.hears is None or TASK in self.hears

    def hears_agent(self, name: str) -> bool:
        """Whether it is shown what another agent says."""
        return name != self.name and (self.hears is None or name in self.hears)


class ConversationSpec(ApiModel):
    """Each trajectory is a conversation of several turns, played by a coroutine of the worker that generates:
    `async def run(task, policy, world)`."""

    run: str | None = Field(default=None, min_length=1)
    """Who plays, as `module:function`. Unset: `rljob_worker.conversations:program` with a program or an agentPool, else
    `rljob_worker.conversations:team` with agents, else `rljob_worker.conversations:tools` with tools or mcpServers,
    else `rljob_worker.conversations:environment` with environments, else `rljob_worker.conversations:single`."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the function finds in `world.options`."""

    columns: Items[Annotated[str, Field(min_length=1)]] = Field(default=(), max_length=64)
    """Columns of the data that the function finds in `task.columns` as text, beside those of rewards. Listed here,
    `environment` chooses a trajectory's environment by name, and `tools` its tools, as names with commas between."""

    concurrency: int = Field(default=64, ge=1, le=65536)
    """Trajectories that are played at once on each copy of the generating model. Default 64."""

    max_turns: int = Field(default=8, ge=1, le=4096)
    """Generations of a trajectory, at most; after that it is over. Default 8."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens behind the prompt that a row of a trajectory may have, of the model and of the world; what goes beyond is
    cut off and marked truncated. At most rollout.maxResponseTokens. Unset: rollout.maxResponseTokens."""

    max_rows: int = Field(default=1, ge=1, le=256)
    """Rows of a trajectory, or with agents of each agent in it: a chat template that rewrites what was said before, as
    those do that leave thoughts out, needs a new row for the turn that follows. A trajectory that needs more is over
    and marked truncated. Default 1."""

    pictures: bool = False
    """Whether tools and environments may show pictures to a model that sees. With data.imagesColumn they always may.
    Default false."""

    max_failed: float = Field(default=0.1, ge=0, le=1)
    """Which part of a step's trajectories may fail, such as by a tool that ends its process. Failed ones are in no
    loss, no baseline and no mean; with more of them the job ends. Default 0.1."""

    tools: Items[ToolSpec] = Field(default=(), max_length=256)
    """Functions that the model may call. Default: none."""

    environments: Items[EnvironmentSpec] = Field(default=(), max_length=64)
    """Environments that may be played with. Default: none."""

    mcp_servers: Items[MCPServerSpec] = Field(default=(), max_length=64)
    """Servers whose tools the model may call. Default: none."""

    program: ProgramSpec | None = None
    """An agent that is a program of its own, and plays. Unset: none."""

    agent_pool: AgentPoolSpec | None = None
    """Agents that live longer than a trajectory, and play. Unset: none."""

    endpoint: EndpointSpec = EndpointSpec()
    """What programs may ask of the policy."""

    agents: Items[AgentSpec] = Field(default=(), max_length=16)
    """Those who take turns in a trajectory. The last one listed gives the answer: rewards and validation judge its last
    row, or that of the one before where it took no turn. Default: one, without a name."""

    order: Items[str] = Field(default=(), max_length=64)
    """Names of agents in the order of their turns in a round. Empty: all agents as they are listed."""

    rounds: int | None = Field(default=None, ge=1, le=4096)
    """How often the order is repeated. Unset: until an agent says its stopWord, or turns are over."""

    reward: Literal["Shared", "PerAgent"] = "Shared"
    """`Shared`: a trajectory has one reward, which all of its agents get. `PerAgent`: reward functions are called for
    each agent with its own last row and its name, as `agent`, and the world's rewards are its who took the turn.
    Default Shared."""

    processes: int | None = Field(default=None, ge=1, le=1024)
    """Processes of each worker in which tools and environments run; of those that are isolated, as many run at once.
    Unset: as many as the worker has CPUs, at most 8."""

    confinement: Confinement = "Preferred"
    """Whether tools and environments are confined by Landlock and seccomp: `Required` refuses a machine that cannot,
    `Preferred` goes on without, `Off` never does. Default Preferred."""

    network: Items[NetworkEntry] = Field(default=(), max_length=64)
    """Where tools and environments may connect to, as `host:port`. Default: nowhere."""

    def confinement_of(self, item: CallLimitsSpec) -> Confinement:
        """How one of its tools, environments or servers is confined."""
        return self.confinement if item.confinement == "Inherit" else item.confinement

    def network_of(self, item: CallLimitsSpec) -> Sequence[str]:
        """Where one of its tools, environments or servers may connect to."""
        return self.network if item.network is None else item.network

    @property
    def run_function(self) -> str:
        """Who plays."""
        if self.run is not None:
            return self.run
        if self.program is not None or self.agent_pool is not None:
            return SHIPPED_CONVERSATIONS + "program"
        shipped = "tools" if self.tools or self.mcp_servers else "environment" if self.environments else "single"
        return SHIPPED_CONVERSATIONS + ("team" if self.agents else shipped)

    @property
    def turns_of_round(self) -> tuple[str, ...]:
        """Names of agents, in the order of their turns in a round."""
        return self.order or tuple(agent.name for agent in self.agents)
