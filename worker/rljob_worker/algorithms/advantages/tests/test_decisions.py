"""Returns and advantages over decisions, each a row of its trajectory, worked out by hand."""

import numpy as np
import pytest

from rljob_worker.algorithms import estimate_advantages
from rljob_worker.algorithms.tests.builders import algorithm
from rljob_worker.batch import Batch, Column

# An episode of two decisions of two tokens each, of which the second's last was not acted on, and one of one decision.
# Rewards 4 and 2. The critic says 5 before the first, 7 before the second and 1 before the third; what it says of other
# tokens nobody asks.
MASK = [[1, 1], [1, 0], [1, 1]]
VALUES = [[5.0, 90.0], [7.0, 91.0], [1.0, 92.0]]


def episodes(**columns: Column) -> Batch:
    of_tokens = {"response_mask": Column.ragged(MASK, "uint8"), "values": Column.ragged(VALUES, "float64"), **columns}
    rewards = Column.fixed(np.array([4.0, 4.0, 2.0]))
    return Batch.build([0, 1, 2], [0, 0, 0], {"rewards": rewards, **of_tokens})


def estimated(batch: Batch, name: str, **advantage: object) -> tuple[list[float], list[float] | None]:
    spec = algorithm(name, advantage={"whiten": False, **advantage}, kl={"coefficient": 0})
    result, _ = estimate_advantages(batch, spec, max_response_tokens=2, rows_per_trajectory=2, rows_are_decisions=True)
    return result.advantages.tolist(), None if result.returns is None else result.returns.tolist()


def test_gae_counts_decisions_and_all_tokens_of_one_have_what_it_has():
    # gamma 0.5, lambda 0.5: delta = 0 + 0.5 * 7 - 5 = -1.5, then 4 - 7 = -3; A = -1.5 + 0.25 * -3 = -2.25, -3;
    # returns 5 - 2.25 = 2.75 and 7 - 3 = 4. By token gamma would count twice as often.
    advantages, returns = estimated(episodes(), "PPO", gamma=0.5, **{"lambda": 0.5})
    assert advantages == pytest.approx([-2.25, -2.25, -3, 0, 1, 1])
    assert returns == pytest.approx([2.75, 2.75, 4, 0, 2, 2])


def test_returns_are_discounted_by_decision():
    # 0.5 * 4 before the first decision, 4 before the second
    advantages, _ = estimated(episodes(), "ReinforcePlusPlus", gamma=0.5)
    assert advantages == pytest.approx([2, 2, 4, 0, 2, 2])


def test_a_reward_is_that_of_the_decision_that_earned_it():
    # 3 of the first episode's 4 are at its first decision's last token
    steps = Column.ragged([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]], "float64")
    advantages, _ = estimated(episodes(step_rewards=steps), "ReinforcePlusPlus", gamma=0.5)
    assert advantages == pytest.approx([3.5, 3.5, 1, 0, 2, 2])


def test_a_decision_that_is_not_acted_on_is_crossed():
    # the second decision acts no more: the first one is the last, and 4 its reward
    batch = episodes(response_mask=Column.ragged([[1, 1], [0, 0], [1, 1]], "uint8"))
    advantages, returns = estimated(batch, "PPO", gamma=0.5)
    assert (advantages, returns) == (pytest.approx([-1, -1, 0, 0, 1, 1]), pytest.approx([4, 4, 0, 0, 2, 2]))


def test_groups_are_compared_as_ever():
    advantages, _ = estimated(episodes(), "GRPO", normalizeStd=False)
    assert advantages == [1, 1, 1, 0, -1, -1]
