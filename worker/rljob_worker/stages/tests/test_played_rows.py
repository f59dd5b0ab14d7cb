"""Rows of trajectories that a team played: their numbers, who acts in them, and what rewards are shown of them."""

import json

import numpy as np

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Column
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.data.dataset import Prompts
from rljob_worker.stages.played.played_rows import played_batch, played_samples

TEAM = "rollout.conversation={agents: [{name: solver}, {name: checker}], rounds: 1, maxRows: 3, reward: REWARD}"


def row(agent, place, turn):
    result = TokenRow(np.array([1]), agent=agent)
    result.place = place
    result.add_sampled(Sampled(np.array([2]), np.zeros(1, np.float32), np.array([0]), 0), turn)
    return result


def team_batch(reward):
    """The second trajectory of a step: the solver's turns 0 and 2, the checker's turn 1; of the solver's rows the
    first, for the engine, was cancelled."""
    tasks = Task.of_group([], np.array([1]), {}, job_seed=0, group=0, group_size=2)
    silent, played = Trajectory(tasks[0], failed="error"), Trajectory(tasks[1])
    played.rows = [row(0, 1, 0), row(0, 2, 2), row(1, 3, 1)]
    played.messages, played.rewards = [{"role": "user", "content": "hi"}], [(0, 1.0), (1, 4.0), (None, 2.0)]
    prompts = Prompts([np.array([1])], ["hi"], {}, Column.strings(["s"]))
    spec = make_plan(TEAM.replace("REWARD", reward)).spec
    batch = played_batch([silent, played], prompts, np.arange(1), spec=spec, version=0)
    return batch, played_samples([played], spec)


def test_rows_of_agents_that_are_rewarded_apart():
    batch, samples = team_batch("PerAgent")
    # 6 numbers a trajectory, 3 an agent; the failed one has one row
    assert batch.row_ids.tolist() == [0, 6, 7, 9] and samples[0]["row_id"] == 9
    assert batch["agent"].to_list() == ["solver", "solver", "solver", "checker"]
    assert batch["environment_reward"].values.tolist() == [0.0, 3.0, 3.0, 4.0]
    assert [text and json.loads(text) for text in batch["messages"].to_list()] == [
        "",
        "",
        *2 * [samples[0]["messages"]],
    ]


def test_rows_of_a_team_with_one_reward():
    batch, _ = team_batch("Shared")
    assert batch["environment_reward"].values.tolist() == [0.0, 7.0, 7.0, 7.0]
    assert [bool(text) for text in batch["messages"].to_list()] == [False, False, False, True]
