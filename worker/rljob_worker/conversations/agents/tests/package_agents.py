"""Agents written with published packages, as their guides have them: which one is the first argument."""

import asyncio
import json
import os
import sys


def task():
    with open(os.environ["RLJOB_TASK_FILE"]) as file:
        return json.load(file)


def with_openai():
    """Two turns, the second one as a stream."""
    import openai

    client, messages = openai.OpenAI(), task()["messages"]
    model = client.models.list().data[0].id
    likely = {"logprobs": True, "top_logprobs": 3}
    first = client.chat.completions.create(model=model, messages=messages, max_tokens=9, temperature=0.2, **likely)
    messages += [first.choices[0].message.model_dump(), {"role": "user", "content": "more"}]
    chunks = list(client.chat.completions.create(model=model, messages=messages, stream=True, **likely))
    second = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    (of_stream,) = (chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs)
    for item in [*first.choices[0].logprobs.content, *of_stream]:
        values = [other.logprob for other in item.top_logprobs]
        assert len(values) == 3 and values == sorted(values, reverse=True) and item.logprob <= values[0] + 1e-5
        assert all(bytes(other.bytes).decode() == other.token for other in item.top_logprobs)
    try:
        client.chat.completions.create(model=model, messages=messages, n=3)
    except openai.BadRequestError as error:
        refused = error.param
    log_probs = [item.logprob for item in first.choices[0].logprobs.content]
    print(json.dumps({"reward": sum(log_probs), "metrics": {"letters": len(second), "refused": refused == "n"}}))


def with_smolagents():
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def add(a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: one number
            b: another number
        """
        return a + b

    model = OpenAIServerModel(
        os.environ["RLJOB_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    answer = ToolCallingAgent(tools=[add], model=model, max_steps=4).run(task()["messages"][-1]["content"])
    print(json.dumps({"reward": float(str(answer) == "5")}))


def with_openai_agents():
    from agents import Agent, Runner, function_tool, set_default_openai_api

    @function_tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    set_default_openai_api("chat_completions")
    agent = Agent(name="adder", instructions="Add.", tools=[add], model=os.environ["RLJOB_MODEL"])
    result = asyncio.run(Runner.run(agent, task()["messages"][-1]["content"]))
    print(json.dumps({"reward": float(result.final_output == "it is 5")}))


def with_a_schema_of_openai_agents():
    """Its answers have a type, which it asks for by a schema and then checks itself."""
    from agents import Agent, Runner, set_default_openai_api
    from pydantic import BaseModel

    class Sum(BaseModel):
        answer: int

    set_default_openai_api("chat_completions")
    agent = Agent(name="adder", instructions="Add.", output_type=Sum, model=os.environ["RLJOB_MODEL"])
    result = asyncio.run(Runner.run(agent, task()["messages"][-1]["content"]))
    print(json.dumps({"reward": float(result.final_output.answer == 5)}))


def with_mini_swe_agent():
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    model = LitellmModel(model_name="openai/" + os.environ["RLJOB_MODEL"], cost_tracking="ignore_errors")
    agent = DefaultAgent(model, LocalEnvironment(), system_template="Solve the task.", instance_template="{{task}}")
    end = agent.run(task()["messages"][-1]["content"])
    print(json.dumps({"reward": float(end["exit_status"] == "Submitted" and end["submission"].strip() == "5")}))


def with_verifiers():
    """An environment with the program for chats that verifiers has, in a process of its own behind its interception."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import load_environment

    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    environment = load_environment(
        vf.SingleAgentEnvConfig.model_validate({"taskset": {"id": "sums_taskset"}, "agent": agent})
    )
    context = vf.ModelContext(model=os.environ["RLJOB_MODEL"], client=client)

    async def episode():
        async with environment.serving():
            return await environment.run_episode(next(iter(environment.taskset)), context)

    end = asyncio.run(episode())
    (trace,) = end.traces
    assert end.ok, [*end.errors, *trace.errors]
    print(json.dumps({"reward": trace.reward, "metrics": {"turns": trace.num_turns}}))


if __name__ == "__main__":
    {
        "openai": with_openai,
        "smolagents": with_smolagents,
        "openai-agents": with_openai_agents,
        "openai-agents-schema": with_a_schema_of_openai_agents,
        "mini-swe-agent": with_mini_swe_agent,
        "verifiers": with_verifiers,
    }[sys.argv[1]]()
