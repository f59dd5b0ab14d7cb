"""What is refused of `rollout.simulator`."""

from __future__ import annotations

import pytest

from rljob_api.catalogue.columns import rollout_columns, update_policy_columns
from rljob_api.checks.validation import problems_of
from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import make_job, make_plan, problems

BAD = {
    "run: games": "rollout.simulator.run",
    "run: 'rljob_worker.embodied.adapters:metaword'": "rollout.simulator.run",
    "run: 'm:f', maxSteps: 4": "rollout.simulator.actionChunk",  # of 8 actions
    "run: 'm:f', rewardBounds: {low: 1, high: 0}": "rollout.simulator.rewardBounds",
    "run: 'm:f', cameras: [front, front]": "rollout.simulator.cameras[1]",
}
BESIDE = {
    "rollout.conversation={}": "rollout.simulator",
    "rollout.partial={tokensPerRound: 8, maxCarries: 2}": "rollout.partial",
    "algorithm={name: ReMax}": "algorithm.advantage.estimator",
    "data.imagesColumn=image": "data.imagesColumn",
}


SERVICES = (
    "services=[{name: encoder, run: 'rljob_worker.services:video_encoder', options: {path: models/vjepa2}},"
    " {name: judge, run: 'rljob_worker.services:judge', options: {path: models/judge, rubric: Good?}}]"
)


def simulator(text: str = "") -> str:
    return f"rollout.simulator={{run: 'm:f'{text}}}"


@pytest.mark.parametrize("fields", BAD)
def test_a_simulator_that_cannot_be_played_is_refused_at_its_field(fields: str) -> None:
    (one,) = problems(f"rollout.simulator={{{fields}}}")
    assert one.path == "spec." + BAD[fields]


@pytest.mark.parametrize("other", BESIDE)
def test_what_a_simulator_does_not_go_with_is_refused_by_name(other: str) -> None:
    paths = [problem.path for problem in problems(simulator(), other)]
    assert "spec." + BESIDE[other] in paths


def test_episodes_of_validation_are_listed_in_one_place() -> None:
    paths = [problem.path for problem in problems(simulator(", evaluation: {}"), "data.validation=[{path: a.jsonl}]")]
    assert paths == ["spec.rollout.simulator.evaluation"]


def test_only_a_job_with_a_simulator_may_do_without_data() -> None:
    job = make_job(simulator())
    data = job.spec.data.model_copy(update={"train": ()})
    assert problems_of(job.model_copy(update={"spec": job.spec.model_copy(update={"data": data})})) == []
    rollout = job.spec.rollout.model_copy(update={"simulator": None})
    spec = job.spec.model_copy(update={"data": data, "rollout": rollout})
    assert [item.path for item in problems_of(job.model_copy(update={"spec": spec}))] == ["spec.data.train"]


def test_an_episode_has_a_row_for_each_decision() -> None:
    plan = make_plan(simulator(", maxSteps: 20, actionChunk: 8"))
    assert plan.rows_per_trajectory == 3  # 8 + 8 + 4 steps
    assert plan.spec.rollout.simulator is not None and plan.spec.rollout.simulator.num_environments == 16


def test_rows_have_a_state_unless_the_policy_sees_pictures_alone() -> None:
    def written(text: str) -> set[str]:
        return set(rollout_columns(make_job(simulator(text)).spec, (), False).writes)

    episode = {"success", "success_at_end", "finish_step", "environment_reward"}
    assert episode | {"state"} <= written("")
    assert "state" not in written(", cameras: [front]") and "state" in written(", cameras: [front], state: [joints]")
    assert "state" in update_policy_columns(make_job(simulator()).spec, (), True).reads


def test_rewards_by_video_need_an_encoder_and_something_to_encode() -> None:
    srpo = "algorithm={name: SRPO}"
    assert [problem.path for problem in problems(srpo)] == ["spec.algorithm.progress"]
    assert [problem.path for problem in problems(srpo, simulator())] == ["spec.algorithm.progress"]
    assert problems(srpo, simulator(", cameras: [front], video: {run: 'm:encode'}")) == []


def test_rewards_by_video_need_to_know_what_the_task_is() -> None:
    (one,) = problems("algorithm={name: SRPO}", simulator(", cameras: [c], video: {run: 'm:e'}, columns: [level]"))
    assert (one.path, "Add task" in one.fix) == ("spec.rollout.simulator.columns", True)


def test_one_ratio_for_a_decision_is_for_jobs_whose_rows_are_decisions() -> None:
    assert problems("algorithm={name: GRPO, loss: {ratio: Decision}}", simulator()) == []


@pytest.mark.parametrize(
    ("video", "path"),
    [
        ("{}", ""),
        ("{run: 'm:encode', path: models/vjepa2}", ""),
        ("{run: encode}", ".run"),
        ("{path: models/vjepa2, options: {size: 8}}", ".options"),
        ("{path: models/vjepa2, service: encoder}", ""),
        ("{service: encodr}", ".service"),
        ("{service: judge}", ".service"),
    ],
)
def test_an_encoder_that_cannot_be_is_refused(video: str, path: str) -> None:
    (one,) = problems("algorithm={name: SRPO}", simulator(f", cameras: [front], video: {video}"), SERVICES)
    assert one.path == "spec.rollout.simulator.video" + path


def test_a_service_may_encode_videos() -> None:
    shown = simulator(", cameras: [front], video: {service: encoder}")
    (warning,) = [item for item in warnings_of(make_plan("algorithm={name: SRPO}", shown, SERVICES)) if "asks" in item]
    assert warning == "nothing asks the service judge: it takes its place and answers nobody"


def test_a_video_that_shows_nothing_or_is_for_nobody_is_refused() -> None:
    paths = [problem.path for problem in problems(simulator(", video: {run: 'm:encode'}"))]
    assert paths == ["spec.rollout.simulator.video"] * 2
