"""Estimators where the agents of a trajectory have rows of their own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.algorithms import estimate_advantages
from rljob_worker.algorithms.tests.builders import algorithm
from rljob_worker.batch import Batch, Column

ROWS = 2
"""Of each of two agents."""
TEAM = {"rows_per_trajectory": 2 * ROWS, "num_agents": 2, "max_response_tokens": 50}


def team_batch(rows) -> Batch:
    """rows: (row_id, group, reward, [(turn, is action, value)]) of each."""
    lengths = [len(tokens) for *_, tokens in rows]
    turns, actions, values = zip(*(token for *_, tokens in rows for token in tokens), strict=True)
    row_ids, groups = [row[0] for row in rows], [row[1] for row in rows]
    agents = np.repeat(np.array(row_ids) // ROWS % 2, lengths)
    columns = {"rewards": Column.fixed(np.array([row[2] for row in rows], np.float64))}
    columns |= {
        "response_mask": Column.from_lengths(np.array(actions, np.uint8), lengths),
        "turn_ids": Column.from_lengths(np.array(turns, np.int64), lengths),
        "agent_ids": Column.from_lengths(agents, lengths),
        "values": Column.from_lengths(np.array(values, np.float64), lengths),
    }
    return Batch.build(np.array(row_ids), np.array(groups), columns)


def one_trajectory(mine=2.0, others=2.0):
    """Agent 0 says two tokens, agent 1 one, and then agent 0, which has heard it (99 is not its own), one more."""
    first = [(0, 1, 1.0), (0, 1, 2.0), (0, 0, 99.0), (2, 1, 4.0)]
    return team_batch([(0, 0, mine, first), (2, 0, others, [(1, 1, 3.0)])])


def estimated(batch, name="GRPO", rewards_agents=False, whiten=False, **advantage):
    spec = algorithm(name, advantage={"whiten": whiten, **advantage}, kl={"coefficient": 0.0})
    result, _ = estimate_advantages(batch, spec, rewards_agents=rewards_agents, **TEAM)
    return result


@pytest.mark.parametrize("name", ["GAE", "MARFT"])
def test_a_trajectory_is_one_chain_through_the_rows_of_its_agents(name):
    # in the order of acting V = 1, 2, 3, 4; γ = 1, λ = ½, the reward 2 at the last token of all
    # δ = (2 - 1, 3 - 2, 4 - 3, 2 - 4) = (1, 1, 1, -2);  A_3 = -2, A_2 = 1 - 1 = 0, A_1 = 1, A_0 = 1 + ½
    result = estimated(one_trajectory(), "PPO", **{"estimator": name, "gamma": 1.0, "lambda": 0.5})
    assert result.advantages.tolist() == [1.5, 1.0, 0.0, -2.0, 0.0]
    assert result.returns.tolist() == [2.5, 3.0, 0.0, 2.0, 3.0]


def test_agents_rewarded_apart_have_their_rewards_at_their_own_last_tokens():
    # agent 0's 2 at its last token, agent 1's 1 at its only one: δ = (1, 1, 1 + 4 - 3, 2 - 4)
    # A_3 = -2, A_2 = 2 - 1 = 1, A_1 = 1 + ½, A_0 = 1 + ¾
    options = {"estimator": "MARFT", "gamma": 1.0, "lambda": 0.5}
    result = estimated(one_trajectory(2.0, 1.0), "PPO", rewards_agents=True, **options)
    assert result.advantages.tolist() == [1.75, 1.5, 0.0, -2.0, 1.0]


def test_returns_of_reinforce_cross_the_rows_of_agents():
    # γ = ½: the reward 2 is 3 actions behind the first one
    result = estimated(one_trajectory(), "ReinforcePlusPlus", gamma=0.5)
    assert result.advantages.tolist() == [0.25, 0.5, 0.0, 2.0, 1.0]


def group_of_two(rewards):
    """Two trajectories of a prompt; in the second one agent 1 took no turn."""
    token, of_one, of_other = [(0, 1, 0.0)], *rewards
    return team_batch([(0, 0, of_one[0], token), (2, 0, of_one[1], [(1, 1, 0.0)]), (4, 0, of_other, token)])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # agent 0: 2 and 0 about their mean 1; agent 1 has nothing to be compared with
        ("GRPO", [1.0, 0.0, -1.0]),
        # agent 0: 2 - 0 and 0 - 2
        ("RLOO", [2.0, 0.0, -2.0]),
    ],
)
def test_agents_are_compared_agent_by_agent(name, expected):
    result = estimated(group_of_two(((2.0, 2.0), 0.0)), name, **({"normalizeStd": False} if name == "GRPO" else {}))
    assert result.advantages.tolist() == expected


def test_agents_rewarded_apart_are_compared_by_their_own_rewards():
    rows = [(0, 0, 2.0, 0), (2, 0, 5.0, 1), (4, 0, 0.0, 0), (6, 0, 9.0, 1)]
    batch = team_batch([(row, group, reward, [(turn, 1, 0.0)]) for row, group, reward, turn in rows])
    result = estimated(batch, rewards_agents=True, normalizeStd=False)
    assert result.advantages.tolist() == [1.0, -2.0, -1.0, 2.0]


def test_each_agent_is_whitened_apart():
    # agent 0: 1 and 3 (mean 2, variance 2); agent 1: 10 and 30
    rows = [(0, 0, 1.0, 0), (2, 0, 10.0, 1), (4, 1, 3.0, 0), (6, 1, 30.0, 1)]
    batch = team_batch([(row, group, reward, [(turn, 1, 0.0)]) for row, group, reward, turn in rows])
    result = estimated(batch, "PPO", rewards_agents=True, whiten=True, **{"lambda": 0.0, "gamma": 0.0})
    half = 0.5**0.5
    assert result.advantages.tolist() == pytest.approx([-half, -half, half, half])


TURNS = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=5), min_size=1, max_size=4)
"""Of each trajectory, the agent of each turn and how many tokens it says."""


@settings(max_examples=60)
@given(turns=TURNS, seed=st.integers(0, 1000), steps=st.booleans())
def test_rows_apart_and_agents_inside_one_row_have_the_same_numbers(turns, seed, steps):
    random = np.random.default_rng(seed)
    count = sum(length for of_one in turns for _, length in of_one)
    values, spread = random.normal(size=count), random.normal(size=count)
    rewards = random.normal(size=len(turns))
    options = {"estimator": "MARFT", "gamma": 0.9, "lambda": 0.8, "whiten": False}
    results, inside, apart, at = [], [], {}, 0
    for number, of_one in enumerate(turns):
        for turn, (agent, length) in enumerate(of_one):
            inside += [(number, turn, agent, place) for place in range(at, at + length)]
            apart.setdefault((number, agent), []).extend(inside[len(inside) - length :])
            at += length
        apart.setdefault((number, 0), [])
    for parts, team in (([[item for item in inside if item[0] == n] for n in range(len(turns))], {}),
                        ([apart[key] for key in sorted(apart)], TEAM)):  # fmt: skip
        keys = [(n, 0) for n in range(len(turns))] if not team else sorted(apart)
        tokens, lengths = [item for part in parts for item in part], [len(part) for part in parts]
        places = np.array([item[3] for item in tokens], np.int64)
        columns = {
            "rewards": Column.fixed(rewards[[number for number, _ in keys]]),
            "response_mask": Column.from_lengths(np.ones(count, np.uint8), lengths),
            "turn_ids": Column.from_lengths(np.array([item[1] for item in tokens], np.int64), lengths),
            "agent_ids": Column.from_lengths(np.array([item[2] for item in tokens], np.int64), lengths),
            "values": Column.from_lengths(values[places], lengths),
        }
        if steps:
            columns["step_rewards"] = Column.from_lengths(spread[places], lengths)
        row_ids = np.array([number * (2 * ROWS if team else 1) + agent * ROWS * bool(team) for number, agent in keys])
        batch = Batch.build(row_ids, np.array([number for number, _ in keys]), columns)
        result, _ = estimate_advantages(
            batch, algorithm("PPO", advantage=options), **(team or {"max_response_tokens": 50})
        )
        lying = torch.zeros(2, count, dtype=torch.float64)
        lying[:, torch.tensor(places)] = torch.stack([result.advantages, result.returns]).double()
        results.append(lying)
    assert torch.equal(*results)
