"""Can the job's conversations be played: are their functions named, and is what bounds them possible?"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence, Set

from rljob_api.catalogue.columns import needs_baseline, resamples
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.network import network_problems
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import CallLimitsSpec, ConversationSpec, MCPServerSpec
from rljob_api.v1alpha1.conversation import PYTHON_TOOL, SHIPPED_CONVERSATIONS, AgentPoolSpec, ProgramSpec
from rljob_api.vocabulary.problem import Problem, suggestion

_PATH = "spec.rollout.conversation"
SHIPPED = ("single", "tools", "environment", "program", "team")
"""Conversations of `rljob_worker.conversations`."""
SHOWING_MACHINE = ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")
"""Folders that no confined code may be shown: other processes, devices, accounts, tokens of the pod."""
GIVEN_VARIABLES = {"OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "RLJOB_MODEL", "RLJOB_TASK_FILE"}
"""Variables of a program's environment that name the policy and the task."""

AGENT_VARIABLES = {"RLJOB_ENDPOINT", "RLJOB_AGENT_TOKEN"}
"""Variables of an agent's environment that name where its tasks come from."""


def check_conversation(subject: Subject) -> Iterator[Problem]:
    """Functions, names, bounds, servers, and what of the job cannot go with a conversation."""
    conversation = subject.spec.rollout.conversation
    if conversation is None:
        return
    yield from _functions(conversation)
    yield from _names(conversation)
    yield from _bounds(subject, conversation)
    yield from _columns(conversation)
    for i, server in enumerate(conversation.mcp_servers):
        yield from _server(f"{_PATH}.mcpServers[{i}]", server)
    yield from _network(conversation)
    yield from _readable(conversation)
    yield from _program(conversation)
    yield from _agent_pool(conversation)
    yield from _listening(conversation, subject.spec.data_buffer.tls)
    yield from _agents_of_elastic(subject)
    yield from _unbuilt(subject)


def shows_machine(path: str) -> bool:
    """Whether a readable path is the root, or in a folder of the machine itself."""
    plain = posixpath.normpath(path)
    return plain in ("/", "//") or any(f"{plain}/".startswith(f"{folder}/") for folder in SHOWING_MACHINE)


def tool_names(conversation: ConversationSpec) -> list[str]:
    """What the model calls the job's own tools, in their order."""
    return [tool.name or tool.run.rpartition(":")[2] for tool in conversation.tools]


def _functions(conversation: ConversationSpec) -> Iterator[Problem]:
    named = [("run", conversation.run_function, "module:function")]
    named += [(f"tools[{i}].run", tool.run, "module:function") for i, tool in enumerate(conversation.tools)]
    named += [(f"environments[{i}].run", item.run, "module:Class") for i, item in enumerate(conversation.environments)]
    for field, run, form in named:
        if USER_STAGE.match(run) is None:
            yield problem(f"{_PATH}.{field}", run, f"this is not of the form {form}", f"Write {form}.")
    for i, tool in enumerate(conversation.tools):
        if tool.run == PYTHON_TOOL and not tool.isolated:
            message = "what this tool runs, a model writes, and others' calls would share its process"
            yield problem(f"{_PATH}.tools[{i}].isolated", False, message, "Write true, or leave it out.")
        elif tool.is_stateful and not tool.isolated:
            message = "a function that trajectories share keeps nothing for one of them"
            yield problem(f"{_PATH}.tools[{i}].stateful", True, message, "Leave it out, or isolated: false.")
        if tool.run == PYTHON_TOOL and (mode := conversation.confinement_of(tool)) != "Required":
            message = "this tool runs what a model writes, which nothing confines surely"
            yield problem(f"{_PATH}.tools[{i}].confinement", mode, message, "Write Required.")
    name = conversation.run_function.removeprefix(SHIPPED_CONVERSATIONS)
    if name == conversation.run_function:
        return
    if name not in SHIPPED:
        message = "no such conversation is shipped"
        yield problem(f"{_PATH}.run", conversation.run, message, suggestion(name, list(SHIPPED)))
    elif name == "environment" and not conversation.environments:
        message = "there is no environment to play with"
        yield problem(f"{_PATH}.run", conversation.run, message, "List one in environments.")
    elif name == "program" and conversation.program is None and conversation.agent_pool is None:
        message = "there is no program to start, and no agent to wait for"
        yield problem(f"{_PATH}.run", conversation.run, message, "Write program.command or agentPool.")


def _names(conversation: ConversationSpec) -> Iterator[Problem]:
    lists = {
        "tools": tool_names(conversation),
        "environments": [item.name for item in conversation.environments],
        "mcpServers": [item.name for item in conversation.mcp_servers],
    }
    for field, names in lists.items():
        for i, name in enumerate(names):
            if name in names[:i]:
                message = f"{field}[{names.index(name)}] has this name too"
                yield problem(f"{_PATH}.{field}[{i}].name", name, message, "Give one of them another name.")


def _bounds(subject: Subject, conversation: ConversationSpec) -> Iterator[Problem]:
    most, asked = subject.spec.rollout.max_response_tokens, conversation.max_tokens
    if asked is not None and asked > most:
        message = f"a row has room for rollout.maxResponseTokens {most} behind its prompt"
        fix = f"Write {most} or less, or raise rollout.maxResponseTokens."
        yield problem(f"{_PATH}.maxTokens", asked, message, fix)
    if conversation.max_rows > conversation.max_turns:
        message = f"a row has a turn at least, and a trajectory has maxTurns {conversation.max_turns}"
        fix = f"Write {conversation.max_turns} or less, or raise maxTurns."
        yield problem(f"{_PATH}.maxRows", conversation.max_rows, message, fix)


def _columns(conversation: ConversationSpec) -> Iterator[Problem]:
    columns = conversation.columns
    for i, column in enumerate(columns):
        if column in columns[:i]:
            yield problem(f"{_PATH}.columns[{i}]", column, "this stands in the list before", "Leave it out.")
    has = {
        "environment": bool(conversation.environments),
        "tools": bool(conversation.tools or conversation.mcp_servers),
    }
    for column, is_there in has.items():
        if column in columns and not is_there:
            field = f"{_PATH}.columns[{columns.index(column)}]"
            message = f"the column says which of the job's {column.removesuffix('s')}s, and there are none"
            yield problem(field, column, message, f"List them in {column.removesuffix('s')}s, or leave this out.")
    is_shipped = conversation.run_function == SHIPPED_CONVERSATIONS + "environment"
    if is_shipped and len(conversation.environments) > 1 and "environment" not in columns:
        message = "there are several, and nothing says which one a prompt is played with"
        names = [item.name for item in conversation.environments]
        fix = "Write columns: [environment], a column of the data with one of these names."
        yield problem(f"{_PATH}.environments", names, message, fix)


def _server(path: str, server: MCPServerSpec) -> Iterator[Problem]:
    if bool(server.command) == (server.url is not None):
        message = "a server is either started (command) or called where it runs (url)"
        yield problem(path, server.name, message, "Write one of command and url.")
    elif server.url is not None and not server.url.startswith(("http://", "https://")):
        yield problem(f"{path}.url", server.url, "this is not an address of HTTP", "Write https://host/path.")
    if server.url is None and server.token_variable is not None:
        message = "only calls of a url carry a token"
        yield problem(f"{path}.tokenVariable", server.token_variable, message, "Write it in environmentVariables.")
    of_command = {
        "environmentVariables": server.environment_variables,
        "network": server.network,
        "readable": server.readable,
    }
    for field, value in of_command.items():
        if server.url is not None and value:
            message = "nobody starts a server of a url"
            yield problem(f"{path}.{field}", list(value), message, "Leave it out, or use command.")


def _program(conversation: ConversationSpec) -> Iterator[Problem]:
    program = conversation.program
    if program is not None:
        yield from _started(f"{_PATH}.program", program, GIVEN_VARIABLES)


def _started(path: str, program: ProgramSpec | AgentPoolSpec, given: Set[str]) -> Iterator[Problem]:
    """given: variables that it is started with."""
    for name in sorted(program.environment.keys() & given):
        message = "this is how the program finds what it works for, and is set for it"
        yield problem(f"{path}.environment.{name}", program.environment[name], message, "Leave it out.")
    folders = [("workingDirectory", program.working_directory), *(("readable", item) for item in program.readable)]
    for field, folder in folders:
        if folder is not None and not folder.startswith("/"):
            message = "a program begins in a folder of its own, from which this leads nowhere"
            yield problem(f"{path}.{field}", folder, message, "Write a path that begins with /.")


def _listening(conversation: ConversationSpec, tls: bool) -> Iterator[Problem]:
    """Whether agents of other pods can connect. tls: whether hosts have certificates."""
    endpoint = conversation.endpoint
    if endpoint.listen != "Pods":
        return
    if endpoint.port is None:
        message = "agents of other pods have to know where the endpoint is"
        yield problem(f"{_PATH}.endpoint.port", None, message, "Write a port, or listen: Loopback.")
    elif not tls:
        message = "other pods connect over TLS, and no certificates are issued"
        yield problem(f"{_PATH}.endpoint.listen", "Pods", message, "Write dataBuffer.tls: true, or listen: Loopback.")


def _agents_of_elastic(subject: Subject) -> Iterator[Problem]:
    if subject.spec.agent_group is not None and subject.spec.elastic_group is not None:
        message = "pods of agents are told once where the endpoints are, and those of an elastic group come and go"
        fix = "Leave it out, or give the group that generates replicas in place of elastic."
        yield problem(f"{_PATH}.agentPool.workerGroup", None, message, fix)


def _agent_pool(conversation: ConversationSpec) -> Iterator[Problem]:
    pool = conversation.agent_pool
    if pool is None:
        return
    path = f"{_PATH}.agentPool"
    yield from _started(path, pool, AGENT_VARIABLES)
    if conversation.program is not None:
        message = "a trajectory is played either by a program of its own or by an agent of the pool"
        yield problem(path, None, message, "Leave program or agentPool out.")
    if not pool.command and conversation.endpoint.port is None:
        message = "agents that run elsewhere have to know where the endpoint is"
        yield problem(f"{_PATH}.endpoint.port", None, message, "Write a port, or agentPool.command.")
    if pool.worker_group is not None:
        yield from _agent_group(conversation, pool)
    of_command = {
        "replicas": None if pool.replicas == 1 else pool.replicas,
        "environment": dict(pool.environment) or None,
        "workingDirectory": pool.working_directory,
    }
    for field, value in of_command.items():
        if not pool.command and value is not None:
            message = "nobody starts agents without a command"
            yield problem(f"{path}.{field}", value, message, "Leave it out, or write command.")


def _agent_group(conversation: ConversationSpec, pool: AgentPoolSpec) -> Iterator[Problem]:
    if pool.command:
        message = "workers start agents by command, and pods of agents come by themselves"
        yield problem(f"{_PATH}.agentPool.workerGroup", None, message, "Leave it out, or leave command out.")
    if conversation.endpoint.listen != "Pods":
        message = "pods of agents cannot connect to an endpoint on loopback"
        yield problem(f"{_PATH}.endpoint.listen", conversation.endpoint.listen, message, "Write Pods.")


def _network(conversation: ConversationSpec) -> Iterator[Problem]:
    lists: list[tuple[str, Sequence[str]]] = [("network", conversation.network)]
    lists += [(f"{field}.network", item.network or ()) for field, item in _called(conversation)]
    for field, network in lists:
        yield from network_problems(f"{_PATH}.{field}", network)


def _readable(conversation: ConversationSpec) -> Iterator[Problem]:
    for field, item in _called(conversation):
        for i, path in enumerate(item.readable):
            if shows_machine(path):
                message = "this would show the machine and everybody's processes and files"
                fix = "Name the folder with the data that the code reads."
                yield problem(f"{_PATH}.{field}.readable[{i}]", path, message, fix)


def _called(conversation: ConversationSpec) -> Iterator[tuple[str, CallLimitsSpec]]:
    """Everything that is called, with its field."""
    for field, items in (
        ("tools", conversation.tools),
        ("environments", conversation.environments),
        ("mcpServers", conversation.mcp_servers),
    ):
        yield from ((f"{field}[{i}]", item) for i, item in enumerate(items))
    if conversation.program is not None:
        yield "program", conversation.program
    if conversation.agent_pool is not None:
        yield "agentPool", conversation.agent_pool


def _unbuilt(subject: Subject) -> Iterator[Problem]:
    """Settings that mean something with a conversation which this version cannot do."""
    spec, message = subject.spec, "this is not built yet with rollout.conversation"
    conversation, partial = spec.rollout.conversation, spec.rollout.partial
    outside = conversation is not None and (conversation.program or conversation.agent_pool)
    if partial is not None and outside:
        cannot = "a program waits for its answers in a process of its own, which no restart brings back to where it was"
        fix = "Leave it out, or play with a run function, whose conversations go on in later steps."
        yield problem("spec.rollout.partial", partial.to_json(), cannot, fix)
    if resamples(spec):
        yield problem("spec.algorithm.sampling.resampling", True, message, "Leave it out.")
    if needs_baseline(spec):
        estimator = spec.algorithm.advantage.estimator
        fix = "Use another, such as GRPO: nobody plays a conversation of the most likely tokens."
        yield problem("spec.algorithm.advantage.estimator", estimator, message, fix)
    if spec.training.router_replay == "Rollout":
        yield problem("spec.training.routerReplay", "Rollout", message, "Write None, or leave it out.")
