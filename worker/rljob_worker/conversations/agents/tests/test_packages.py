"""Published packages, unchanged and in an environment of their own, against the endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.built_once import cache_root, locked
from rljob_worker.conversations.agents.tests.test_programs import play
from rljob_worker.conversations.playing.tests.playing import SteppingEngine
from rljob_worker.conversations.playing.tests.test_with_engine import ModelLetters
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests.chat_models import QWEN, tokenizer_with
from rljob_worker.engines.rollout.tests.subjects import transformers_engine, write_model

pytestmark = pytest.mark.slow

PACKAGES = {
    "agents-1": ("openai==3.54.0", "smolagents==1.26.0", "openai-agents==0.24.0"),
    "mini-swe-agent-2.4.6": ("mini-swe-agent==2.4.6",),
    "verifiers-0.4.0": ("verifiers==0.4.0",),
}
"""By the name of an environment: those whose dependencies go together are in one."""
AGENTS = Path(__file__).parent / "package_agents.py"
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "5"}}\n</tool_call>'


def python_with_packages(name: str) -> Path:
    """The interpreter of an environment with the packages, made once for all checkouts of a user."""
    environment = cache_root() / name
    uv = [sys.executable, "-m", "uv"]
    with locked(environment.with_name(environment.name + ".lock")):
        if not (environment / "installed").exists():
            subprocess.run(
                [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, environment], check=True
            )
            subprocess.run([*uv, "pip", "install", "--quiet", "--python", environment, *PACKAGES[name]], check=True)
            (environment / "installed").touch()
    return environment / "bin" / "python"


def spec_of(package, *arguments, environment="agents-1", confinement="Inherit", passed_over=(), **variables):
    python = python_with_packages(environment)
    given = {
        "command": [str(python), str(AGENTS), package, *map(str, arguments)],
        "environment": {"OPENAI_AGENTS_DISABLE_TRACING": "1", **variables},
        "readable": [str(python.parent.parent), str(AGENTS.parent), *map(str, arguments)],
        "confinement": confinement,
        "memory": "4Gi",
        "timeoutSeconds": 300,
    }
    return ConversationSpec.model_validate({"program": given, "endpoint": {"passedOver": passed_over}})


def saying(*texts):
    """An engine that says these texts, and a renderer that knows its tokens; 0 ends a turn."""
    tokenizer = tokenizer_with(QWEN)
    letters = ["".join(map(chr, tokenizer.encode(text, add_special_tokens=False))) + "~" for text in texts]
    return SteppingEngine(lambda row_id, turn, before: letters[turn]), ChatRenderer(tokenizer, end_tokens=[0])


def test_openai_gets_the_tokens_and_log_probs_that_are_recorded(tmp_path):
    engine = transformers_engine(write_model(tmp_path))
    bounds = Bounds(turns=4, rows=2, response_tokens=90, row_tokens=140)
    (one,) = play(spec=spec_of("openai"), engine=engine, renderer=ModelLetters(), bounds=bounds)
    assert one.failed is None, one.message
    (row, *_) = one.rows
    assert one.num_turns == 2 and one.environment_reward == pytest.approx(float(row.log_probs[:9].sum()), abs=1e-4)
    assert dict(one.metrics)["refused"] == 1.0 and dict(one.metrics)["program_calls"] == 2.0


def test_smolagents_calls_its_tool_and_ends():
    engine, renderer = saying(ADD, FINAL)
    bounds = Bounds(turns=6, rows=4, response_tokens=4000, row_tokens=16000)
    (one,) = play(spec=spec_of("smolagents"), prompts=("add 2 and 3",), engine=engine, renderer=renderer, bounds=bounds)
    assert (one.failed, one.environment_reward, one.num_turns) == (None, 1.0, 2), one.message


def test_openai_agents_calls_its_tool_in_one_row():
    engine, renderer = saying(ADD, "it is 5")
    bounds = Bounds(turns=6, rows=1, response_tokens=4000, row_tokens=16000)
    spec = spec_of("openai-agents")
    (one,) = play(spec=spec, prompts=("add 2 and 3",), engine=engine, renderer=renderer, bounds=bounds)
    assert (one.failed, one.environment_reward, one.num_turns, len(one.rows)) == (None, 1.0, 2, 1), one.message
    assert [message["role"] for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_openai_agents_sends_a_schema_that_is_refused_by_name_unless_the_job_has_it_passed_over():
    def played(passed_over):
        engine, renderer = saying('{"answer": 5}')
        bounds = Bounds(turns=2, rows=1, response_tokens=4000, row_tokens=16000)
        spec = spec_of("openai-agents-schema", passed_over=passed_over)
        (one,) = play(spec=spec, prompts=("add 2 and 3",), engine=engine, renderer=renderer, bounds=bounds)
        return one

    one = played(["response_format"])
    assert (one.failed, one.environment_reward, one.num_turns) == (None, 1.0, 1), one.message
    other = played([])
    assert other.failed == "program_exit" and "list response_format in rollout" in other.message, other.message


def test_mini_swe_agent_runs_commands_and_submits_in_one_row():
    commands = ("echo $((2+3)) > answer", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer")
    calls = (json.dumps({"name": "bash", "arguments": {"command": command}}) for command in commands)
    # its commands begin in sessions of their own, which a confined process may not have
    engine, renderer = saying(*(f"<tool_call>\n{call}\n</tool_call>" for call in calls))
    bounds = Bounds(turns=6, rows=1, response_tokens=4000, row_tokens=16000)
    quiet = {"MSWEA_GLOBAL_CONFIG_DIR": ".", "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    spec = spec_of("mini-swe-agent", environment="mini-swe-agent-2.4.6", confinement="Off", **quiet)
    (one,) = play(spec=spec, prompts=("add 2 and 3",), engine=engine, renderer=renderer, bounds=bounds)
    assert (one.failed, one.environment_reward, one.num_turns, len(one.rows)) == (None, 1.0, 2, 1), one.message


def test_an_environment_of_verifiers_scores_the_policy():
    # its program for chats begins in a session of its own, and uv makes what it imports
    engine, renderer = saying("it is 5")
    bounds = Bounds(turns=3, rows=1, response_tokens=4000, row_tokens=16000)
    spec = spec_of("verifiers", environment="verifiers-0.4.0", confinement="Off")
    (one,) = play(spec=spec, prompts=("add 2 and 3",), engine=engine, renderer=renderer, bounds=bounds)
    assert (one.failed, one.environment_reward, one.num_turns, len(one.rows)) == (None, 1.0, 1, 1), one.message
    assert dict(one.metrics)["turns"] == 1.0
