"""Elastic worker groups that a job cannot have."""

import pytest

from rljob_api.tests.builders import (
    ADVANTAGE,
    REFERENCE,
    REWARD,
    ROLLOUT,
    TWO_POLICIES,
    UPDATE,
    dag,
    make_plan,
    pipeline,
    problems,
)

ELASTIC = (
    "workerGroups=[{name: train, replicas: 2}, {name: rollout, elastic: {min: 2, max: 4}}]",
    "rollout.maxStaleness=1",
)


def only(*overrides):
    (problem,) = problems(*overrides)
    return problem


def groups(*items):
    return "workerGroups=[" + ", ".join("{" + item + "}" for item in items) + "]"


def test_a_job_with_an_elastic_group_is_accepted():
    assert problems(*ELASTIC) == []
    assert [make_plan(*ELASTIC, f"generators={n}").elastic_group.replicas for n in (2, 4)] == [4, 4]


@pytest.mark.parametrize("asked", [1, 5])
def test_generators_are_within_the_bounds_of_the_group(asked):
    problem = only(*ELASTIC, f"generators={asked}")
    assert (problem.path, problem.found) == ("spec.generators", str(asked))
    assert problem.message == "elastic group rollout has from 2 to 4 pods"
    assert problem.fix == "Write a number from 2 to 4."


@pytest.mark.parametrize("override", ["rollout.conversation={run: 'mine:play'}", "data.imagesColumn=images"])
def test_guests_play_conversations_and_see(override):
    assert problems(*ELASTIC, override) == []


def test_generators_without_an_elastic_group_mean_nothing():
    problem = only("generators=2")
    assert (problem.path, problem.message) == (
        "spec.generators",
        "no worker group is elastic, so that each has the replicas that it says",
    )


def test_the_least_is_one():
    text = groups("name: train", "name: rollout, elastic: {min: 0, max: 4}")
    problem = only(text, "rollout.maxStaleness=1")
    assert problem.path == "spec.workerGroups[1].elastic.min"
    assert "at least 1" in problem.fix


def test_bounds_are_in_order():
    problem = only(groups("name: train", "name: rollout, elastic: {min: 3, max: 2}"), "rollout.maxStaleness=1")
    assert problem.path == "spec.workerGroups[1].elastic.max"
    assert problem.message == "the most pods are fewer than the least, min 3"


def test_replicas_are_for_groups_of_a_fixed_size():
    bounds = "elastic: {min: 1, max: 2}"
    problem = only(groups("name: train", f"name: rollout, replicas: 2, {bounds}"), "rollout.maxStaleness=1")
    assert (problem.path, problem.found) == ("spec.workerGroups[1].replicas", "2")
    # an API server fills in the default
    assert problems(groups("name: train", f"name: rollout, replicas: 1, {bounds}"), "rollout.maxStaleness=1") == []


def test_one_group_at_most_is_elastic():
    bounds = "elastic: {min: 1, max: 2}"
    items = ("name: train", f"name: rollout, {bounds}", f"name: other, {bounds}")
    stages = (ROLLOUT, REWARD, REFERENCE + ", group: train", ADVANTAGE, UPDATE + ", group: train")
    stages += ("name: mine, run: 'm:f', after: [rollout], group: other",)
    result = problems(groups(*items), dag(*stages), "rollout.maxStaleness=1")
    (problem,) = [item for item in result if item.path == "spec.workerGroups[2].elastic"]
    assert problem.message == (
        "group rollout is elastic already, and spec.generators is the number of pods of one group"
    )


def test_the_only_group_is_not_elastic():
    result = problems(groups("name: train, elastic: {min: 1, max: 2}"))
    (problem,) = [item for item in result if item.path == "spec.workerGroups[0].elastic"]
    assert problem.message == "the only worker group trains, too, and training needs all its pods"


def test_an_elastic_group_generates_for_later_steps():
    result = problems(ELASTIC[0], "weightSync.transport=Collective")
    assert {item.path: item.message for item in result} == {
        "spec.rollout.maxStaleness": "elastic group rollout takes parts of a step while others are trained on",
        "spec.weightSync.transport": ("broadcasts wait for every pod, and those of elastic group rollout come and go"),
    }


def test_broadcasts_keep_no_version_for_a_pod_that_comes_later():
    problem = only(*ELASTIC, "weightSync.transport=Collective")
    assert (problem.path, problem.found) == ("spec.weightSync.transport", '"Collective"')


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("rollout.partial={tokensPerRound: 8, maxCarries: 2}", "spec.rollout.partial"),
        ("successPolicy.groups=[train, rollout]", "spec.successPolicy.groups[1]"),
    ],
)
def test_what_an_elastic_group_cannot_do_yet_or_at_all(override, path):
    problem = only(*ELASTIC, override)
    assert problem.path == path


def test_a_stage_that_draws_until_it_has_a_batch_needs_a_fixed_group():
    result = problems(*ELASTIC, "algorithm.sampling.dynamic=true")
    (problem,) = [item for item in result if "rollout" in item.message]
    assert problem.message == "stage sample runs in elastic group rollout, whose pods only run Rollout and then Reward"
    assert problem.fix == "Write algorithm.sampling.dynamic: false, or leave elastic out."


def test_a_reward_model_is_served_beside_the_job():
    models = "models=[{name: actor, path: models/tiny}, {name: judge, path: models/judge}]"
    rewards = "rewards=[{name: good, run: RewardModel, model: judge}]"
    result = problems(*ELASTIC, models, rewards)
    (problem,) = [item for item in result if item.path == "spec.rewards[0].run"]
    assert problem.message == ("a stage computes this reward in the gang, and elastic group rollout adds rewards up")


def test_stages_of_an_elastic_group_are_a_rollout_and_its_reward():
    mine = "name: mine, run: 'm:f', after: [rollout], group: rollout"
    result = problems(*ELASTIC, dag(ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE, mine))
    (problem,) = result
    assert (problem.path, problem.found) == ("spec.dag.stages[5].group", '"m:f"')
    late = REWARD.replace("[rollout]", "[rollout, reference]")
    problem = only(*ELASTIC, dag(ROLLOUT, late, REFERENCE, ADVANTAGE, UPDATE))
    assert (problem.path, problem.fix) == (
        "spec.dag.stages[1].after",
        "Write after: [rollout], or give the stage another group.",
    )
    problem = only(*ELASTIC, dag(ROLLOUT, REWARD + ", balance: Tokens", REFERENCE, ADVANTAGE, UPDATE))
    assert problem.path == "spec.dag.stages[1].balance"


def test_an_elastic_group_generates_for_one_policy():
    stages = (*pipeline("left", "correct"), *pipeline("right", "short"))
    result = problems(*ELASTIC, *TWO_POLICIES, dag(*stages))
    assert "elastic group rollout generates for one policy, and this job trains left, right" in {
        item.message for item in result
    }


def test_prompts_are_shared_equally_by_the_workers_that_own_them_and_not_by_pods_that_come_and_go():
    # 8 prompts: 3 guests need not divide them, 3 training workers would have to
    assert problems(groups("name: train", "name: rollout, elastic: {min: 3, max: 3}"), ELASTIC[1]) == []
    assert (
        problems(groups("name: train", "name: rollout, accelerator: {count: 3}, elastic: {min: 1, max: 2}"), ELASTIC[1])
        == []
    )
    problem = only(groups("name: train, replicas: 3", "name: rollout, elastic: {min: 1, max: 2}"), ELASTIC[1])
    assert problem.path == "spec.data.batchSize"
