"""The Reward stage beside models of the job's own, and with rewards at the steps of an answer."""

import numpy as np

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.rewards.combine import combine
from rljob_worker.rewards.results import RewardResult
from rljob_worker.stages.reward import Reward
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.tests.test_step_rewards import PIECES, listed, plain

SIZES = ("data.batchSize=1", "algorithm.groupSize=2")
MODELS = "models=[{name: actor, path: m}, {name: taste, path: t}]"


class Functions:
    """A RewardRunner of functions alone."""

    def __init__(self, rewards, steps=()):
        self.rewards, self.steps, self.rows = np.array(rewards, float), dict(steps), []

    def begin(self, rows):
        self.rows += rows

    def collect(self, row_ids):
        total = combine(self.rewards, [1.0] * self.rewards.shape[1])
        return RewardResult(self.rewards, total, {}, (), {}, self.steps)


def batch_of(**columns):
    """Two rows of one group: `3*4=12\\n` and `#### 7`, the end of each included."""
    tokens = {"prompt_ids": Column.ragged([[0], [0]]), "response_ids": Column.ragged([[0, 1, 2, 7], [5, 6, 7]])}
    texts = {"source": Column.strings(["s", "s"]), "answer": Column.strings(["a", "a"])}
    return Batch.build([0, 1], [0, 0], {**tokens, **texts, **columns}, [5, 4])


def run(plan, runner, batch):
    stage = Reward(plan.stage("reward"), Resources(plan, {}, {}, None, None, runner))
    return stage.run(batch, StageContext(1, 0, plan.spec, plain, None, 0, 1))


def test_what_a_model_says_is_a_reward_with_its_weight_at_its_place():
    rewards = (
        "rewards=[{name: good, run: RewardModel, model: taste, weight: 0.5}, "
        "{name: correct, run: 'm:f', column: answer, weight: 2.0}]"
    )
    plan = make_plan(MODELS, rewards, *SIZES)
    runner = Functions([[1.0], [0.0]])
    taste = {"taste_rewards": Column.fixed(np.array([0.25, 4.0]))}
    # 0.5 x 0.25 + 2 x 1 and 0.5 x 4 + 2 x 0
    result = run(plan, runner, batch_of(**taste))
    assert result.batch["rewards"].values.tolist() == [2.125, 2.0]
    assert result.metrics["reward/good"].value == (0.25 + 4.0) / 2
    assert result.metrics["training/accuracy/s"].value == (0.25 + 4.0) / 2  # the first reward
    assert [sample["rewards"] for sample in result.samples] == [
        {"good": 0.25, "correct": 1.0},
        {"good": 4.0, "correct": 0.0},
    ]


def test_functions_are_told_nothing_of_models():
    """They may have begun before the model had its turn."""
    rewards = "rewards=[{name: correct, run: 'm:f', column: answer}, {name: good, run: RewardModel, model: taste}]"
    # of a dag in which a stage of the user's comes in between, so that nothing is begun early
    plan = make_plan(MODELS, rewards, *SIZES)
    stages = tuple(
        each.model_copy(update={"rename": {"response_ids": "response_ids"}}) if each.name == "reward" else each
        for each in plan.stages
    )
    late = plan.model_copy(update={"stages": stages})
    assert late.begun_in("reward") is None
    runner = Functions([[1.0], [0.0]])
    run(late, runner, batch_of(taste_rewards=Column.fixed(np.array([0.25, 4.0]))))
    assert [row["response"] for row in runner.rows] == ["3*4=12\n", "#### 7"]
    assert all("taste_rewards" not in row for row in runner.rows)


def test_a_job_may_have_models_alone():
    plan = make_plan(MODELS, "rewards=[{name: good, run: RewardModel, model: taste, weight: -1.0}]", *SIZES)
    batch = batch_of(taste_rewards=Column.fixed(np.array([0.25, 4.0]))).select(
        ["prompt_ids", "response_ids", "source", "taste_rewards"]
    )
    assert run(plan, None, batch).batch["rewards"].values.tolist() == [-0.25, -4.0]


def test_steps_of_several_rewards_lie_at_their_tokens_times_their_weights():
    rewards = (
        "rewards=[{name: good, run: RewardModel, model: taste}, {name: steps, run: 'm:s', spread: Steps, weight: 0.5}, "
        "{name: correct, run: 'm:f', column: answer}, {name: more, run: 'm:t', spread: Steps, weight: 2.0}]"
    )
    plan = make_plan("algorithm={name: PPO}", MODELS, rewards, "data.batchSize=2")
    assert PIECES[1] == "=12"
    # of functions: steps, correct, more. Row 0 has 7 characters, of which 3 and 7 end steps
    said = {0: [[(3, 1.0), (7, 3.0)], []], 2: [[(7, 1.0)], [(4, 5.0)]]}
    runner = Functions([[4.0, 1.0, 1.0], [0.0, 0.0, 5.0]], said)
    result = run(plan, runner, batch_of(taste_rewards=Column.fixed(np.array([0.25, 0.5]))))
    # 0.25 + 0.5 x 4 + 1 + 2 x 1 and 0.5 + 0 + 0 + 2 x 5
    assert result.batch["rewards"].values.tolist() == [5.25, 10.5]
    # row 0: 0.5 at 3*4, 1.5 + 2 at the end of the line; row 1: 10 at ####
    assert listed(result.batch["step_rewards"]) == [[0.5, 0, 3.5, 0], [10.0, 0, 0]]
