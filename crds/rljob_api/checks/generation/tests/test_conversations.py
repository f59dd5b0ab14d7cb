"""What is refused of `rollout.conversation`."""

import pytest

from rljob_api.checks.generation.conversations import tool_names
from rljob_api.tests.builders import make_job, make_plan, problems

TOOLS = "{run: 'games:guess'}"
BAD = {
    "run: games": "rollout.conversation.run",
    "run: 'rljob_worker.conversations:singel'": "rollout.conversation.run",
    "run: 'rljob_worker.conversations:environment'": "rollout.conversation.run",
    "run: 'rljob_worker.conversations:program'": "rollout.conversation.run",
    "program: {command: [agent], environment: {OPENAI_API_KEY: k}}": (
        "rollout.conversation.program.environment.OPENAI_API_KEY"
    ),
    "program: {command: [agent], workingDirectory: code}": "rollout.conversation.program.workingDirectory",
    "program: {command: [agent], readable: [code]}": "rollout.conversation.program.readable",
    "program: {command: [agent], network: ['example.org:0']}": "rollout.conversation.program.network[0]",
    "agentPool: {}": "rollout.conversation.endpoint.port",
    "agentPool: {command: [a]}, program: {command: [b]}": "rollout.conversation.agentPool",
    "agentPool: {}, endpoint: {port: 9410, listen: Pods}": "rollout.conversation.endpoint.listen",
    "agentPool: {command: [a]}, endpoint: {listen: Pods}": "rollout.conversation.endpoint.port",
    "agentPool: {replicas: 2}, endpoint: {port: 9410}": "rollout.conversation.agentPool.replicas",
    "agentPool: {command: [a], environment: {RLJOB_AGENT_TOKEN: t}}": (
        "rollout.conversation.agentPool.environment.RLJOB_AGENT_TOKEN"
    ),
    "agentPool: {command: [a], workingDirectory: code}": "rollout.conversation.agentPool.workingDirectory",
    "agentPool: {command: [a], network: ['example.org:0']}": "rollout.conversation.agentPool.network[0]",
    "tools: [{run: guess}]": "rollout.conversation.tools[0].run",
    "tools: [{run: 'games:guess'}, {run: 'other:guess'}]": "rollout.conversation.tools[1].name",
    "environments: [{name: a, run: 'm:A'}, {name: a, run: 'm:B'}], columns: [environment]": (
        "rollout.conversation.environments[1].name"
    ),
    "environments: [{name: a, run: 'm:A'}, {name: b, run: 'm:B'}]": "rollout.conversation.environments",
    "maxTokens: 33": "rollout.conversation.maxTokens",  # maxResponseTokens is 32
    "maxTurns: 2, maxRows: 3": "rollout.conversation.maxRows",
    "columns: [seed, seed]": "rollout.conversation.columns[1]",
    "columns: [tools]": "rollout.conversation.columns[0]",
    "columns: [environment]": "rollout.conversation.columns[0]",
    "mcpServers: [{name: files}]": "rollout.conversation.mcpServers[0]",
    "mcpServers: [{name: files, command: [serve], url: 'https://a'}]": "rollout.conversation.mcpServers[0]",
    "mcpServers: [{name: files, url: 'files.example'}]": "rollout.conversation.mcpServers[0].url",
    "mcpServers: [{name: files, command: [serve], tokenVariable: T}]": (
        "rollout.conversation.mcpServers[0].tokenVariable"
    ),
    "mcpServers: [{name: files, url: 'https://a', environmentVariables: [T]}]": (
        "rollout.conversation.mcpServers[0].environmentVariables"
    ),
    "mcpServers: [{name: files, url: 'https://a', readable: [data]}]": "rollout.conversation.mcpServers[0].readable",
    "mcpServers: [{name: files, command: [x], network: ['a:0']}]": "rollout.conversation.mcpServers[0].network[0]",
    "tools: [{run: 'm:f', readable: [index, data/../../proc, '/proc/../proc/self']}]": (
        "rollout.conversation.tools[0].readable[2]"
    ),
    "tools: [{run: 'rljob_worker.sandbox.python_tool:python'}]": "rollout.conversation.tools[0].confinement",
    "tools: [{run: 'rljob_worker.sandbox.python_tool:python', isolated: false}], confinement: Required": (
        "rollout.conversation.tools[0].isolated"
    ),
    "tools: [{run: 'm:f', isolated: false, stateful: true}]": "rollout.conversation.tools[0].stateful",
    "environments: [{name: e, run: 'm:E', readable: ['//']}]": "rollout.conversation.environments[0].readable[0]",
    "network: ['example.org:0']": "rollout.conversation.network[0]",
}
BESIDE = {
    "algorithm={name: ReMax}": "algorithm.advantage.estimator",
    "training.routerReplay=Rollout": "training.routerReplay",
}


@pytest.mark.parametrize("conversation", BAD)
def test_a_conversation_that_cannot_be_played_is_refused_at_its_field(conversation):
    (one,) = problems(f"rollout.conversation={{{conversation}}}")
    assert one.path == "spec." + BAD[conversation]


@pytest.mark.parametrize("other", BESIDE)
def test_what_conversations_do_not_go_with_is_refused_by_name(other):
    paths = [problem.path for problem in problems("rollout.conversation={}", other)]
    assert "spec." + BESIDE[other] in paths


def test_rounds_go_with_conversations_that_a_restart_can_play_again():
    partial = "rollout.partial={tokensPerRound: 100, maxCarries: 2}"
    long = ("rollout.maxResponseTokens=64", partial)
    (one,) = problems("rollout.conversation={}", *long)
    assert one.path == "spec.rollout.partial.tokensPerRound" and "a conversation samples at most 64 tokens" in str(one)
    assert not problems("rollout.conversation={maxRows: 2}", *long)  # 2 rows of 64
    (one,) = problems("rollout.conversation={maxRows: 2, program: {command: [agent]}}", *long)
    assert one.path == "spec.rollout.partial" and "a program waits" in str(one)


def test_resampling_is_refused():
    job = ("algorithm={name: PPO, sampling: {resampling: {method: PFPPO}}}", "rollout.conversation={}")
    result = problems(*job)
    assert any(problem.path.startswith("spec.algorithm.sampling.resampling") for problem in result), result


def test_who_plays_follows_from_what_there_is_to_play_with():
    def run(text):
        return make_job(f"rollout.conversation={{{text}}}").spec.rollout.conversation.run_function

    assert run("") == "rljob_worker.conversations:single"
    assert run(f"tools: [{TOOLS}]") == "rljob_worker.conversations:tools"
    assert run("mcpServers: [{name: files, command: [serve]}]") == "rljob_worker.conversations:tools"
    assert run("environments: [{name: a, run: 'm:A'}]") == "rljob_worker.conversations:environment"
    assert run(f"run: 'games:play', tools: [{TOOLS}]") == "games:play"


def test_tools_are_called_as_their_functions_are_unless_they_have_a_name():
    job = make_job("rollout.conversation={tools: [{run: 'm:f'}, {run: 'm:g'}, {run: 'm:f', name: h}]}")
    assert tool_names(job.spec.rollout.conversation) == ["f", "g", "h"]


def test_a_trajectory_has_as_many_row_numbers_as_rows():
    assert make_plan().rows_per_trajectory == 1
    assert make_plan("rollout.conversation={maxRows: 3}").rows_per_trajectory == 3


def test_other_pods_connect_where_certificates_are_issued():
    pool = "rollout.conversation={agentPool: {}, endpoint: {port: 9410, listen: Pods}}"
    assert problems(pool, "dataBuffer.tls=true") == []


LISTENS = "endpoint: {port: 9410, listen: Pods}"
IMAGE = "workerGroup: {template: {spec: {containers: [{name: agent, image: 'a:1'}]}}}"
VARIABLE = "workerGroup: {template: {spec: {containers: [{name: agent, image: 'a:1', env: [{name: RLJOB_ENDPOINT}]}]}}}"
POOL = "rollout.conversation.agentPool.workerGroup"


@pytest.mark.parametrize(
    ("pool", "endpoint", "path"),
    [
        (IMAGE, LISTENS, None),
        (f"command: [a], {IMAGE}", LISTENS, POOL),
        (IMAGE, "endpoint: {port: 9410}", "rollout.conversation.endpoint.listen"),
        ("workerGroup: {}", LISTENS, f"{POOL}.template"),
        ("workerGroup: {template: {spec: {containers: [{name: mine, image: 'a:1'}]}}}", LISTENS, f"{POOL}.template"),
        (VARIABLE, LISTENS, f"{POOL}.template.spec.containers[0].env[0].name"),
    ],
)
def test_pods_of_agents_have_an_image_and_a_way_to_the_endpoint(pool, endpoint, path):
    found = problems(f"rollout.conversation={{agentPool: {{{pool}}}, {endpoint}}}", "dataBuffer.tls=true")
    assert [problem.path for problem in found] == ([] if path is None else [f"spec.{path}"])


def test_pods_of_agents_cannot_follow_an_elastic_group():
    pool = f"rollout.conversation={{agentPool: {{{IMAGE}}}, {LISTENS}}}"
    groups = "workerGroups=[{name: train}, {name: rollout, elastic: {min: 1, max: 2}}]"
    found = {problem.path: problem.message for problem in problems(pool, "dataBuffer.tls=true", groups)}
    assert "those of an elastic group come and go" in found[f"spec.{POOL}"]
