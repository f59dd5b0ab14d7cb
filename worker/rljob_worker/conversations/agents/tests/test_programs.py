"""Trajectories that real programs play over the endpoint: what is recorded, and how a program may end."""

from __future__ import annotations

import socket

import pytest

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy
from rljob_worker.conversations.agents.programs import Programs, program_end
from rljob_worker.conversations.journal.records import records_of
from rljob_worker.conversations.journal.tests.test_replay import Written
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.tests.playing import SAMPLING, LetterRenderer, SteppingEngine, tasks_of, text
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.run_functions.program import program
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.targets import Answer
from rljob_worker.stages.stage import Alone

AGENT = ["python", "-m", "rljob_worker.endpoint.tests.letter_agent"]
BOUNDS = Bounds(turns=8, rows=2, response_tokens=200, row_tokens=250)


def spec_of(*arguments, **fields):
    command = [*AGENT, *arguments]
    given = {"command": command, "environment": {"MOOD": "good"}, "timeoutSeconds": 60, **fields}
    return ConversationSpec.model_validate({"program": given})


def play(*arguments, prompts=("hi",), bounds=BOUNDS, engine=None, spec=None, renderer=None, **options):
    """Trajectories of the program with these arguments, one after another with their engine."""
    programs = Programs(spec or spec_of(*arguments), ServedPolicy("actor", gives_top_log_probs=True))
    return played(programs, prompts, bounds, engine, renderer, **options)


def played(programs, prompts=("hi",), bounds=BOUNDS, engine=None, renderer=None, **options):
    """Trajectories that agents play who are programs."""
    engine = engine or SteppingEngine(lambda row_id, turn, before: "abcdefgh"[turn % 8] + "~")
    shared = SharedWorld(programs=programs)
    conversations = Conversations(engine, program, renderer or LetterRenderer(), bounds, shared=shared)
    try:
        conversations.prepare(programs.open())
        tasks = tasks_of(*prompts)
        step = Play(tasks, SAMPLING, "step-1", rows_per_trajectory=bounds.rows, **options)
        return conversations.play(step, Alone())
    finally:
        conversations.close()


def test_what_programs_are_answered_is_recorded_rewarded_and_replayed():
    entries = Written()
    played = play("play", "{prompt}", prompts=("hi", "ho"), entries=entries)
    for item in played:
        prompt = item.task.messages[0]["content"]
        assert (item.failed, item.environment_reward, item.num_turns) == (None, 1.0, 2), item.message
        assert [(text(row.prompt), text(row.response_ids)) for row in item.rows] == [
            (f"[u:{prompt}][a:", "a~][u:more][a:b~")
        ]
        assert item.rows[0].mask.tolist() == [1, 1] + [0] * 12 + [1, 1]
        assert dict(item.metrics) == {"program_calls": 2.0, "letters": 2.0}
    engine = SteppingEngine(lambda *_: "z~")
    again = play("play", "{prompt}", prompts=("hi", "ho"), engine=engine, records=records_of(entries))
    assert [[text(row.response_ids) for row in item.rows] for item in again] == [["a~][u:more][a:b~"]] * 2
    assert all(item.is_replayed for item in again) and not engine.submitted


@pytest.mark.parametrize(
    ("arguments", "fields", "cause", "message"),
    [
        (["wrong"], {}, "program_exit", "exit code 1: status 400; its last call was refused: n is 2"),
        (["endless"], {"timeoutSeconds": 0.5}, "program_timedout", "took longer than 0.5 s"),
        (["loud"], {}, "program_outputtoolarge", "printed more than 1048576 bytes"),
        (["silent"], {}, "program_calls", "does it use OPENAI_BASE_URL?"),
        (["reward", '{"reward": "high"}'], {}, "reward", "the reward 'high', which is not a finite number"),
        (["reward", '{"reward": NaN}'], {}, "reward", "not a finite number"),
        (["reward", '{"reward": 1, "metrics": [1]}'], {}, "metric", "not finite numbers by name"),
    ],
)
def test_a_program_that_ends_badly_costs_its_trajectory_by_name(arguments, fields, cause, message):
    (one,) = play(*arguments, spec=spec_of(*arguments, **fields))
    assert one.failed == cause and message in one.message


def test_a_last_line_without_a_reward_is_none():
    (one,) = play("reward", "done: 7")
    assert (one.failed, one.rewards, one.num_turns) == (None, [], 1)


def test_a_program_that_wants_more_turns_than_there_are_is_truncated_and_not_failed():
    (one,) = play("greedy", bounds=Bounds(turns=3, rows=3, response_tokens=200, row_tokens=250))
    assert (one.failed, one.truncated, one.num_turns, len(one.rows)) == (None, True, 3, 3)


def test_a_program_reaches_the_endpoint_and_nothing_else(confining_kernel):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        (one,) = play("reaching", port, spec=spec_of("reaching", port, confinement="Required"))
    assert one.failed == "program_exit" and "Permission" in one.message
    (one,) = play("reward", "x", spec=spec_of("reward", "x", confinement="Required"))
    assert one.failed is None


def test_what_a_program_asks_beside_what_is_recorded_costs_its_trajectory():
    entries = Written()
    play("play", "{prompt}", entries=entries)
    changed = SteppingEngine(lambda *_: "z~")
    (one,) = play("greedy", engine=changed, records=records_of(entries))
    assert one.failed == "replay" and not changed.submitted


def test_a_command_that_there_is_not_ends_the_job():
    with pytest.raises(InvalidJob, match=r"program\.command: no-such-agent: .*No such file"):
        play(spec=ConversationSpec.model_validate({"program": {"command": ["no-such-agent"]}}))


def test_the_worker_is_told_how_a_process_ended():
    result = {"code": 3, "output": "out\n", "errors": "", "num_bytes": 4, "why": None}
    assert program_end(Answer(result, None, 1.0), 10).message == "exit code 3: out"
