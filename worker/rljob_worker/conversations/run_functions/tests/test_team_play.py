"""Teams: who takes each turn, what each agent is shown, and what ends it."""

from __future__ import annotations

import pytest

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker import conversations
from rljob_worker.conversations.playing.tests.playing import LetterRenderer, SteppingEngine, play, tasks_of, text
from rljob_worker.conversations.policy import Agent, Bounds
from rljob_worker.conversations.run_functions.team_play import shown_messages, turns_of
from rljob_worker.conversations.world import SharedWorld

BOUNDS = Bounds(turns=8, rows=2, response_tokens=200, row_tokens=250)


def team_of(*agents, **fields):
    """agents: fields of each."""
    return ConversationSpec.model_validate({"agents": list(agents), **fields})


def played(team, answer, run=conversations.team):
    """The trajectory of the prompt `3?`. answer: (agent, turn, text before) -> what is said then."""
    agents = [Agent(agent.name, at, LetterRenderer()) for at, agent in enumerate(team.agents)]

    def of_row(row_id, turn, before):
        return answer(row_id // BOUNDS.rows % len(agents), turn, before) + "~"

    engine = SteppingEngine(of_row)
    (only,) = play(run, tasks_of("3?"), engine, bounds=BOUNDS, agents=agents, shared=SharedWorld(team=team))
    return only


def rows(trajectory):
    """Agent and tokens of each row."""
    return [(row.agent, text(row.sequence())) for row in trajectory.rows]


SOLVER, CHECKER = {"name": "solver"}, {"name": "checker"}


def test_agents_take_turns_in_order_and_each_has_a_row_of_all_that_it_was_shown():
    team = team_of(SOLVER, CHECKER | {"system": "Check."}, rounds=2)
    trajectory = played(team, lambda agent, turn, before: "sc"[agent] + str(before.count("a:")))
    assert rows(trajectory) == [
        (0, "[u:3?][a:s1~][u:checker: c1][a:s2~"),
        (1, "[s:Check.][u:3?\n\nsolver: s1][a:c1~][u:solver: s2][a:c2~"),
    ]
    assert [message.get("agent") for message in trajectory.messages] == [None, *2 * ["solver", "checker"]]
    assert trajectory.metrics == [("turns", 4.0)] and not trajectory.truncated


def test_an_agent_is_shown_what_it_hears_and_nothing_else():
    team = team_of(
        SOLVER | {"hears": ["task"]},
        {"name": "witness", "hears": ["task", "solver"]},
        {"name": "judge", "hears": ["witness"]},
        rounds=1,
    )
    trajectory = played(team, lambda agent, turn, before: "swj"[agent])
    assert [row for _, row in rows(trajectory)] == [
        "[u:3?][a:s~",
        "[u:3?\n\nsolver: s][a:w~",
        "[u:witness: w][a:j~",
    ]


def test_a_word_ends_the_conversation_after_the_turn_in_which_it_is_said():
    team = team_of(SOLVER, CHECKER | {"stopWord": "RIGHT"}, rounds=4)
    words = {"solver": "so RIGHT", "first": "no", "later": "it is RIGHT"}
    # the solver may say it: it is not its word
    trajectory = played(
        team, lambda agent, _, before: words["solver" if agent == 0 else "later" if "no" in before else "first"]
    )
    assert [message["content"] for message in trajectory.messages[1:]] == ["so RIGHT", "no", "so RIGHT", "it is RIGHT"]


def test_without_rounds_turns_end_a_conversation_that_no_word_does():
    team = team_of(SOLVER, CHECKER | {"stopWord": "RIGHT"}, order=["solver", "solver", "checker"])
    order = [agent.name for agent, _ in zip(turns_of(team), range(5), strict=False)]
    assert order == ["solver", "solver", "checker", "solver", "solver"]
    trajectory = played(team_of(SOLVER, CHECKER | {"stopWord": "RIGHT"}), lambda *_: "no")
    assert trajectory.num_turns == BOUNDS.turns and trajectory.failed is None


def test_an_agent_that_says_nothing_is_shown_as_such_and_its_turn_has_the_token_that_ends_it():
    trajectory = played(team_of(SOLVER, CHECKER, rounds=1), lambda agent, turn, before: "" if agent == 0 else "why?")
    assert rows(trajectory) == [(0, "[u:3?][a:~"), (1, "[u:3?\n\nsolver: ][a:why?~")]
    assert [row.num_sampled for row in trajectory.rows] == [1, 5] and trajectory.failed is None


async def mute(task, policy, world):
    """Asks an agent for a turn without a token."""
    await world.agents["checker"].chat(max_tokens=0)


async def own_order(task, policy, world):
    """Takes turns as it likes; `policy` is the first agent."""
    said = await world.agents["checker"].chat(task.messages)
    await policy.chat([{"role": "user", "content": said.content}])


def test_code_of_ones_own_may_not_ask_for_a_turn_without_tokens():
    trajectory = played(team_of(SOLVER, CHECKER), lambda *_: "x", run=mute)
    assert trajectory.failed == "error" and "max_tokens is 0; a turn has one token at least" in trajectory.message


def test_code_of_ones_own_finds_the_agents_by_name():
    trajectory = played(team_of(SOLVER, CHECKER), lambda agent, *_: "sc"[agent], run=own_order)
    assert rows(trajectory) == [(0, "[u:c][a:s~"), (1, "[u:3?][a:c~")]
    assert [row.turn_ids.tolist() for row in trajectory.rows] == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("hears", "expected"),
    [
        (None, [{"role": "user", "content": "2?\n\nb: yes\n\nc: no"}]),
        (["task", "c"], [{"role": "user", "content": "2?\n\nc: no"}]),
        (["b"], [{"role": "user", "content": "b: yes"}]),
        ([], []),
    ],
)
def test_what_an_agent_is_shown_before_its_first_turn(hears, expected):
    agent = team_of({"name": "a", "hears": hears}).agents[0]
    said = [("b", "yes"), ("c", "no")]
    assert shown_messages(agent, [{"role": "user", "content": "2?"}], said) == expected
