"""The Reward stage beside models of the job's own, and rewards at the steps of an answer and the tokens they end in."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.tests.builders import TWO_GROUPS, make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.report import StepReport, merge_reports, report_from_bytes, report_to_bytes
from rljob_worker.rewards.combine import combine
from rljob_worker.rewards.combine import metrics as combined_metrics
from rljob_worker.rewards.results import RewardResult
from rljob_worker.services.steps import steps_of
from rljob_worker.stages.rewarding.reward import Reward, reward_rows, step_rewards, tokens_at, with_thumbnails
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.vision.pictures import PictureList
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.tests.video_files import animation, frames_of

PIECES = ["3*4", "=12", "\n", "12-", "5=7\n", "####", " 7", ""]
"""Of a vocabulary; the last one is a special token, of which nothing is read."""


def plain(ids):
    return "".join(PIECES[int(item)] for item in ids)


def listed(column):
    """Values of each row."""
    return [row.tolist() for row in column.to_list()]


def stripped(ids):
    """As a tokenizer that leaves out the space at the beginning of a text."""
    return plain(ids).lstrip(" ")


def in_bytes(ids):
    """Tokens are bytes of UTF-8, of which some characters take several."""
    return bytes(int(item) for item in ids).decode(errors="replace")


def test_rewards_are_at_the_tokens_in_which_steps_end():
    # 3*4 =12 \n | 12- 5=7\n | #### 7 <end>: steps end after 7, 14 and 20 characters
    ids = [0, 1, 2, 3, 4, 5, 6, 7]
    ends = [step.end for step in steps_of(plain(ids), "\n")]
    assert ends == [7, 14, 20]
    rows = Column.ragged([ids, [6, 7]])
    # the second row has one step of two characters, and one of none, which ends nowhere
    result = step_rewards(rows, [list(zip(ends, [0.5, 0.25, 1.0], strict=True)), [(0, 9.0), (2, 3.0)]], plain)
    assert listed(result) == [[0, 0, 0.5, 0, 0.25, 0, 1.0, 0], [3.0, 0]]
    assert result.dtype == "float64"


def test_rewards_that_end_in_one_token_add_up():
    # "5=7\n" holds two ends
    result = step_rewards(Column.ragged([[3, 4]]), [[(4, 1.0), (7, 2.0)]], plain)
    assert listed(result) == [[0, 3.0]]


def test_rows_without_steps_or_tokens_have_none():
    assert listed(step_rewards(Column.ragged([[0, 1], []]), [[], [(0, 1.0)]], plain)) == [[0, 0], []]
    assert listed(step_rewards(Column.ragged([]), [], plain)) == []


def test_a_space_that_is_left_out_at_the_beginning_moves_nothing():
    # "7" "####" " 7": one, five and seven characters
    assert stripped(np.array([6, 5, 6])) == "7#### 7"
    assert tokens_at(np.array([6, 5, 6]), [1, 2, 5, 7], stripped) == [0, 1, 1, 2]


def test_a_character_of_several_tokens_ends_in_the_last_of_them():
    ids = np.frombuffer("aé→b".encode(), np.uint8).astype(np.int64)  # 1, 2, 3 and 1 bytes
    # beginnings of "é" and "→" are a replacement character each, as long as the whole
    assert in_bytes(ids) == "aé→b"
    assert tokens_at(ids, [1, 4], in_bytes) == [0, 6]


@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=30), st.data())
@pytest.mark.parametrize("decode", [plain, stripped])
def test_a_step_ends_in_the_first_token_that_brings_as_many_characters(decode, ids, data):
    text = decode(ids)
    ends = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    for end, token in zip(ends, tokens_at(np.array(ids), ends, decode), strict=True):
        assert len(decode(ids[: token + 1])) >= end
        assert token == 0 or len(decode(ids[:token])) < end


SIZES = ("data.batchSize=1", "algorithm.groupSize=2")
MODELS = "models=[{name: actor, path: m}, {name: taste, path: t}]"


class Functions:
    """A RewardRunner of functions alone."""

    def __init__(self, rewards, steps=()):
        self.rewards, self.steps, self.rows = np.array(rewards, float), dict(steps), []

    def begin(self, rows):
        self.rows += rows

    def collect(self, row_ids, *, exactly=False):
        total = combine(self.rewards, [1.0] * self.rewards.shape[1])
        return RewardResult(self.rewards, total, {}, (), {}, self.steps)


def batch_of(**columns):
    """Two rows of one group: `3*4=12\\n` and `#### 7`, the end of each included."""
    tokens = {"prompt_ids": Column.ragged([[0], [0]]), "response_ids": Column.ragged([[0, 1, 2, 7], [5, 6, 7]])}
    texts = {"source": Column.strings(["s", "s"]), "answer": Column.strings(["a", "a"])}
    return Batch.build([0, 1], [0, 0], {**tokens, **texts, **columns}, [5, 4])


def test_means_of_rows_that_any_rank_may_have_are_exact():
    """So that figures of all ranks do not depend on who has which rows: 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1."""
    numbers = [0.1, 0.2, 0.3, 0.7]

    def figures(stage, *shares):
        parts = [rewards_metrics(stage, [numbers[i] for i in share]) for share in shares]
        payload = merge_reports([report_to_bytes(StepReport(part), at) for at, part in enumerate(parts)])
        metrics = report_from_bytes(payload).metrics
        assert {"reward/mean", "reward/square_mean", "training/reward/s", "reward/rule"} <= set(metrics)
        return {name: scalar.value for name, scalar in metrics.items()}

    plan = make_plan(*TWO_GROUPS)
    leased = plan.stage("reward")
    assert leased.scatters_rows
    assert figures(leased, [0, 1, 2], [3]) == figures(leased, [2, 1], [0, 3]) == figures(leased, [0, 1, 2, 3])
    by_rank = leased.model_copy(update={"scatters_rows": False})
    assert figures(by_rank, [0, 1, 2], [3]) != figures(by_rank, [2, 1], [0, 3])


def rewards_metrics(stage, rewards):
    """Metrics of a Reward stage on a rank that has rows of these rewards."""
    plan = make_plan(*TWO_GROUPS)
    rows = Batch.build(
        list(range(len(rewards))),
        [0] * len(rewards),
        {
            "prompt_ids": Column.ragged([[0]] * len(rewards)),
            "response_ids": Column.ragged([[1]] * len(rewards)),
            "source": Column.strings(["s"] * len(rewards)),
            "answer": Column.strings(["a"] * len(rewards)),
        },
        [2] * len(rewards),
    )
    resources = Resources(plan, {}, {}, rewards={"actor": SummedRewards(rewards)})
    context = StageContext(1, 0, plan.spec, str, None, 0, 1)
    return Reward(stage, resources).run(rows, context).metrics


class SummedRewards(Functions):
    """One reward, with its metrics."""

    def __init__(self, rewards):
        super().__init__([[reward] for reward in rewards])

    def collect(self, row_ids, *, exactly=False):
        result = super().collect(row_ids)
        extra = [[{"share": reward} for reward in self.rewards[:, 0].tolist()]]
        return replace(result, metrics=combined_metrics(["rule"], self.rewards, extra, exactly=exactly))


def test_a_trajectory_gets_the_reward_of_its_last_row_in_all_of_its_rows():
    plan = make_plan("rewards=[{name: correct, run: 'm:f', column: answer}]", *SIZES)
    plan = plan.model_copy(update={"rows_per_trajectory": 3})
    # the two rows of `batch_of` and one more: rows 0 and 1 are the first trajectory, 3 the second
    responses = Column.ragged([[5, 7], [0, 1, 2, 7], [5, 6, 7]])
    columns = {name: column.take(np.array([0, 0, 1])) for name, column in batch_of().columns.items()}
    batch = Batch.build([0, 1, 3], [0, 0, 0], {**columns, "response_ids": responses}, [3, 5, 4])
    result = run(plan, Functions([[1.0], [0.0]]), batch)
    assert result.batch["rewards"].values.tolist() == [1.0, 1.0, 0.0]
    # one of two is right, where two of three rows are
    assert result.metrics["reward/mean"].value == result.metrics["training/accuracy/s"].value == 0.5
    shown = [(sample["row_id"], sample["response"], sample["reward"]) for sample in result.samples]
    assert shown == [(1, "3*4=12\n", 1.0), (3, "#### 7", 0.0)]


def run(plan, runner, batch):
    stage = Reward(plan.stage("reward"), Resources(plan, {}, {}, rewards={"actor": runner}))
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


def test_functions_know_nothing_of_models():
    """They may have begun before the model had its turn."""
    rewards = "rewards=[{name: correct, run: 'm:f', column: answer}, {name: good, run: RewardModel, model: taste}]"
    # of a dag in which a stage of the user's comes in between, so that nothing is begun early
    plan = make_plan(MODELS, rewards, *SIZES)
    stages = tuple(
        stage.model_copy(update={"rename": {"response_ids": "response_ids"}}) if stage.name == "reward" else stage
        for stage in plan.stages
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


def seen_batch(pictures):
    """Two rows for each list of pictures, which a group has."""
    num_rows = 2 * len(pictures)
    heads = np.arange(0, num_rows, 2)
    columns = {
        "prompt_ids": Column.ragged([[5]] * num_rows),
        "response_ids": Column.ragged([[6]] * num_rows),
        "images": Column.binary([PictureList.pack(of_group) for of_group in pictures]).per_group_at(heads, num_rows),
    }
    return Batch.build(range(num_rows), np.repeat(range(len(pictures)), 2), columns)


def test_rows_of_a_group_share_its_pictures_as_bytes():
    rows = reward_rows(seen_batch([[b"one", b"two"], []]), plain)
    assert [row["pictures"] for row in rows] == [[b"one", b"two"]] * 2 + [[]] * 2
    assert rows[0]["pictures"] is rows[1]["pictures"]
    assert "images" not in rows[0]


def test_videos_are_beside_pictures_and_samples_show_their_frames():
    video = animation(frames_of(4))
    rows = reward_rows(seen_batch([[video, picture()], [picture(seed=1)]]), plain)
    assert [row["videos"] for row in rows] == [[video]] * 2 + [[]] * 2
    assert rows[0]["pictures"] == [picture()]
    samples = with_thumbnails([{} for _ in rows], rows)
    assert [len(sample.get("pictures", ())) for sample in samples] == [2, 0, 1, 0]


def test_a_sample_shows_the_pictures_of_its_group_at_its_first_row():
    rows = reward_rows(seen_batch([[picture()], [picture(seed=1), picture(seed=2)]]), plain)
    samples = with_thumbnails([{"row_id": row["row_id"]} for row in rows], rows)
    assert [len(sample.get("pictures", ())) for sample in samples] == [1, 0, 2, 0]
    assert samples[0]["pictures"][0].startswith("data:image/jpeg;base64,")
