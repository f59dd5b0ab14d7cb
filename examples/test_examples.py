"""Every shipped job plans, and its stages count right."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_worker.batch import Batch, Column
from rljob_worker.stages.stage import Resources
from rljob_worker.stages.user import UserStage

EXAMPLES = Path(__file__).parent
JOBS = sorted(EXAMPLES.glob("*.yaml"))


def plan_of(path):
    return plan(parse_job(path.read_text(encoding="utf-8"), []))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_plans_and_is_called_like_its_file(path):
    assert plan_of(path).spec.stop.steps > 0
    assert f"name: {path.stem}\n" in path.read_text(encoding="utf-8")


def test_the_disaggregated_pipeline_is_the_one_the_algorithm_would_choose():
    path = EXAMPLES / "arithmetic-disaggregated.yaml"
    text = path.read_text(encoding="utf-8")
    # The dag is the last block of the file.
    default = plan(parse_job(text[: text.index("  # The pipeline that algorithm GRPO")], []))
    assert default.spec.dag is None
    assert {stage.name: stage for stage in plan_of(path).stages} == {stage.name: stage for stage in default.stages}
    assert [group.name for group in default.groups] == ["rollout", "train"]


def test_rows_and_weights_of_the_disaggregated_example_cross_between_pods():
    job = plan_of(EXAMPLES / "arithmetic-disaggregated.yaml")
    assert {edge.name: edge.transport for edge in job.edges}["rollout->update"] == "Buffer"
    assert [edge.transport for edge in job.weights] == ["DataBuffer"]


TEXTS = ("3*4=12\n12+5=17\n#### 17", "3*4=12\n12+5=18\n#### 18", "3*4=12\n#### 17", "#### 17")


@pytest.fixture
def stages(monkeypatch):
    """The user's stages of custom-stage.yaml and custom-filter.yaml, built as a worker builds them."""
    monkeypatch.syspath_prepend(EXAMPLES)
    jobs = [plan_of(EXAMPLES / f"{name}.yaml") for name in ("custom-stage", "custom-filter")]
    yield {
        stage.name: UserStage(stage, Resources(job, {}, {}, None, None, None))
        for job in jobs
        for stage in job.stages
        if ":" in stage.run
    }
    for module in ("custom_stage", "custom_filter"):
        sys.modules.pop(module)


def build_batch(**columns):
    rows = np.arange(len(TEXTS))
    texts = [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in TEXTS]
    return Batch(rows, rows, rows, {"response_ids": Column.ragged(texts, "int64"), **columns})


def build_context():
    return SimpleNamespace(decode=lambda ids: bytes(ids.astype(np.uint8)).decode())


def values_of(stage, batch, name):
    return stage.run(batch, build_context()).batch[name].values.tolist()


def test_working_pays_only_when_it_is_shown_and_true(stages):
    # Two true steps; 12+5 is not 18; one step only; none.
    assert values_of(stages["working"], build_batch(), "working_reward") == [1.0, 0.0, 0.0, 0.0]


def test_brevity_takes_off_a_tenth_for_each_token_above_eighteen(stages):
    # The texts have 22, 22, 14 and 7 characters, which stand for tokens here.
    result = values_of(stages["brevity"], build_batch(), "brevity_reward")
    assert result == pytest.approx([-0.4, -0.4, 0.0, 0.0])


def test_total_is_the_weighted_sum(stages):
    batch = build_batch(
        rewards=Column.fixed(np.array([1.0, 0.0, 1.0, 0.0], np.float32)),
        working_reward=Column.fixed(np.array([1.0, 0.0, 0.0, 0.0], np.float32)),
        brevity_reward=Column.fixed(np.array([-0.4, 0.0, 0.0, -1.0], np.float32)),
    )
    # 1 + 0.2 * 1 + 0.1 * -0.4 = 1.16, 0, 1, and 0.1 * -1.
    assert values_of(stages["total"], batch, "total_rewards") == pytest.approx([1.16, 0.0, 1.0, -0.1])


def test_questions_are_kept_of_which_some_answers_are_right(stages):
    # three questions of eight answers each: all wrong, 1 of 8 right, all right; an eighth is the least share
    rewards = np.concatenate([np.zeros(8), np.eye(8)[0], np.ones(8)]).astype(np.float32)
    rows = np.arange(24)
    batch = Batch(rows, rows // 8, rows, {"rewards": Column.fixed(rewards)})
    assert values_of(stages["learnable"], batch, "kept") == [False] * 8 + [True] * 8 + [False] * 8


@pytest.fixture
def user_code(monkeypatch):
    """Imports a module of the folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    names = ("calculator", "guessing_game", "reach_state", "reach_pictures")
    yield __import__
    for name in names:
        sys.modules.pop(name, None)


def test_the_calculator_knows_numbers_and_three_operations(user_code):
    calculator = user_code("calculator").calculator
    assert calculator("12*34+56") == 464 and calculator(" -(2-5)*10") == 30
    for wrong in ("__import__('os')", "2**9", "1.5+1", "a+1"):
        with pytest.raises(ValueError, match="is no expression of whole numbers"):
            calculator(wrong)
    with pytest.raises(ValueError, match="has 201 characters"):
        calculator("1" * 201)


def test_the_game_says_where_the_number_is_and_ends_after_four_guesses(user_code):
    game = user_code("guessing_game").GuessingGame()
    assert game.reset(seed=3, number="20") == ""
    assert [game.step(text) for text in ("16", "24", "20")] == [
        ("higher", 0.0, False),
        ("lower", 0.0, False),
        ("right", 1.0, True),
    ]
    game.reset(seed=40)  # 1 + 40 % 31 = 10
    answers = [game.step(text) for text in ("9", "11", "1", "2")]
    assert answers == [("higher", 0.0, False), ("lower", 0.0, False), ("higher", 0.0, False), ("higher", 0.0, True)]
    game.reset(seed=0)
    assert game.step("ten") == ("that is no number", 0.0, True)


def test_a_cursor_moves_by_a_quarter_and_succeeds_near_its_target(user_code):
    reach = user_code("reach_state").Reach()
    first, _ = reach.reset(3, {"task": "lower-right"})
    assert abs(first[:2]).max() <= 0.2 and first[2:].tolist() == pytest.approx([0.6, -0.6])
    reach.place = np.array([0.05, -0.2])
    moves = [reach.step(np.array(action)) for action in ([1.0, 0.0], [0.5, -1.0], [8.0, 0.0])]
    # 0.3, -0.2 is 0.4 above the target; 0.425, -0.45 is within 0.25 of it; the edge is 1
    assert [move[4]["success"] for move in moves] == [False, True, False]
    assert moves[-1][0].tolist() == pytest.approx([1.0, -0.45, 0.6, -0.6])


def test_the_way_to_the_red_target_is_two_moves_to_the_left(user_code):
    reach = user_code("reach_pictures").make()
    reach.reset(seed=0, options={"task": "red"})
    reach.place = np.array([-0.2, -0.4])
    infos = [reach.step(np.array([-1.0, 0.0]))[4]["success"] for _ in range(3)]
    assert infos == [False, True, True]  # -0.26, -0.32, -0.38: within 0.15 of -0.45
    assert {item["task"] for item in reach.tasks()} == {"red", "green", "blue", "yellow"}


def test_a_video_is_the_farther_from_another_the_farther_its_cursor_ends(user_code):
    module = user_code("reach_pictures")

    def video(end):
        places = [np.array([0.7 + (end - 0.7) * at / 7, 0.0]) for at in range(8)]
        return module.encode(np.stack([module.plane.drawn(place) for place in places]))

    first, *others = map(video, (-0.6, -0.3, 0.0, 0.4, 0.7))
    distances = [np.linalg.norm(first - other) for other in others]
    assert first.shape == (2,) and distances == sorted(distances) and distances[0] > 0
