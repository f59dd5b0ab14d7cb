"""Jobs with several policies, and what may be wrong with them."""

import pytest
import yaml

from rljob_api.catalogue.stages import STAGES
from rljob_api.tests.builders import SMALL, TWO_POLICIES, dag, make_job, make_plan, pipeline, problems
from rljob_api.v1alpha1.dag import UPDATE_POLICY

MODELS, REWARDS, KL_OFF = TWO_POLICIES
LEFT, RIGHT = pipeline("left", "correct"), pipeline("right", "short")


def result(*stages, base=TWO_POLICIES):
    """(path, message and fix) of what is wrong."""
    return [
        (problem.path.removeprefix("spec."), f"{problem.message}. {problem.fix}")
        for problem in problems(*base, dag(*stages))
    ]


def test_each_policy_has_columns_rewards_and_engines_of_its_own():
    plan = make_plan(*TWO_POLICIES, dag(*LEFT, *RIGHT))
    assert plan.spec.policies == ("left", "right")
    edges = {edge.name: set(edge.columns) for edge in plan.edges}
    assert edges["rollout_left->update_left"] & edges["rollout_right->update_right"] >= {"response_ids"}
    # an answer is carried for the reward that reads it
    assert "answer" in edges["rollout_left->reward_left"] and "answer" not in plan.stage("rollout_right").writes
    assert not [name for name in edges if "left" in name and "right" in name]
    assert {edge.name: (edge.source, edge.target) for edge in plan.weights} == {
        "weights/left": ("train/left", "rollout/left"),
        "weights/right": ("train/right", "rollout/right"),
    }
    assert plan.trainer_of("right").path == "models/right"
    assert [plan.policy_of(stage.name) for stage in plan.stages] == [stage.name.split("_")[1] for stage in plan.stages]
    assert (plan.label_of("left"), make_plan().label_of("actor")) == ("left", None)


def test_a_policy_sees_its_own_rewards_in_the_order_of_its_stage():
    both = pipeline("left", "short", "correct")
    plan = make_plan(*TWO_POLICIES, dag(*both, *RIGHT))
    assert [reward.name for reward in plan.spec_of("left").rewards] == ["short", "correct"]
    assert [reward.name for reward in plan.spec_of("right").rewards] == ["short"]
    all_of_them = make_plan(*TWO_POLICIES, dag(*pipeline("left"), *RIGHT)).spec_of("left").rewards
    assert [reward.name for reward in all_of_them] == ["correct", "short"]


def test_a_policy_may_learn_from_rows_of_another_where_it_makes_none():
    student = "name: student, run: UpdatePolicy, models: [right], after: [advantage_left]"
    plan = make_plan(*TWO_POLICIES, "rewards=[{name: correct, run: 'm:f'}]", dag(*LEFT, student))
    assert [plan.policy_of(name) for name in ("rollout_left", "advantage_left", "student")] == ["left", "left", "right"]


def test_a_model_in_training_elsewhere_is_no_old_policy_of_these_rows():
    peer = "name: peer, run: LogProbs, models: [right], after: [rollout_left]"
    old = "name: old, run: LogProbs, models: [left], after: [rollout_left]"
    update = LEFT[3].replace("[advantage_left]", "[advantage_left, old, peer]")
    old_right = old.replace("old", "old_right").replace("left", "right")
    right = [stage.replace("[advantage_right]", "[advantage_right, old_right, peer_right]") for stage in RIGHT]
    peer_right = peer.replace("peer", "peer_right").replace("_left", "_right").replace("[right]", "[left]")
    plan = make_plan(MODELS, REWARDS, dag(*LEFT[:3], old, peer, update, *right, old_right, peer_right))
    assert (plan.stage("old").writes, plan.stage("peer").writes) == (("old_log_probs",), ("ref_log_probs",))


@pytest.mark.parametrize(
    ("dag_of", "policies", "derived"),
    [
        (None, ("actor",), ("reference", "critic")),
        (pipeline("actor"), ("actor",), ("reference", "critic")),
        ([stage.replace(", models: [left]", "") for stage in LEFT], ("actor",), ("reference", "critic")),
        (LEFT, ("left",), ()),  # which no one lists here
    ],
)
def test_which_models_are_policies(dag_of, policies, derived):
    spec = make_job().spec
    if dag_of is not None:
        stages = [yaml.safe_load("{" + stage + "}") for stage in dag_of]
        spec = type(spec).model_validate({**spec.to_json(), "dag": {"stages": stages}})
    assert (spec.policies, spec.derived_models) == (policies, derived)


@pytest.mark.parametrize(
    ("stages", "path", "words"),
    [
        # one of them is trained by nobody
        ((*LEFT, *RIGHT[:3]), "dag.stages[4].models", "no stage with run: UpdatePolicy trains the model"),
        # rows of both
        (
            (*LEFT, *RIGHT[:3], RIGHT[3].replace("right]", "right, advantage_left]")),
            "dag.stages[7].after",
            "rows of stages rollout_left and rollout_right meet here",
        ),
        # copied, and not changed
        (
            (*LEFT, *RIGHT[:3], RIGHT[3].replace("advantage_right", "advantage_left")),
            "dag.stages[7].after",
            "the rows are those of stage rollout_left, and stage rollout_right generates with model right",
        ),
        ((*LEFT, *RIGHT, "name: more, run: Rollout, models: [left]"), "dag.stages[8].models", "rollout_left generates"),
        (
            (*LEFT, *RIGHT, "name: more, run: Reward, after: [rollout_left]"),
            "dag.stages[8]",
            "reward_left writes column",
        ),
        # the reward of the other policy is none of its rows
        (
            (*LEFT, RIGHT[0], RIGHT[2].replace("reward_right", "rollout_right"), RIGHT[3]),
            "dag.stages[5]",
            "run: Reward.",
        ),
        # rewards that a stage chooses
        ((*pipeline("left", "corect"), *RIGHT), "dag.stages[1].rewards[0]", "Did you mean correct?"),
        ((*pipeline("left", "short", "short"), *RIGHT), "dag.stages[1].rewards[1]", "stands in the list before"),
        ((*pipeline("left", "short"), *RIGHT), "rewards[0].name", "no stage computes the reward"),
        ((LEFT[0] + ", rewards: [short]", *LEFT[1:], *RIGHT), "dag.stages[0].rewards", "Rollout computes no rewards"),
    ],
)
def test_one_mistake_in_a_job_with_two_policies_is_found_where_it_is(stages, path, words):
    assert any(item == path and words in text for item, text in result(*stages)), result(*stages)


def test_a_mix_of_rows_is_reported_where_it_begins():
    mixed = [stage.replace("[reward_right]", "[reward_right, reward_left]") for stage in RIGHT]
    assert [path for path, text in result(*LEFT, *mixed) if "meet here" in text] == ["dag.stages[6].after"]


def test_nothing_stands_for_two_policies_at_once():
    """A reference or a critic is a copy of the policy, and with two nobody knows of which."""
    reference = "name: reference, run: LogProbs, models: [reference], after: [rollout_left]"
    paths = [path for path, text in result(*LEFT, *RIGHT, reference) if "no such model" in text]
    assert paths == ["dag.stages[8].models[0]"]
    full = result(*LEFT, *RIGHT, base=(MODELS, REWARDS, "algorithm.kl={estimator: Full, coefficient: 0.1}"))
    assert [path for path, _ in full] == ["algorithm.kl.estimator"]
    listed = MODELS.replace("}]", "}, {name: reference, path: models/first}]")
    assert result(*LEFT, *RIGHT, base=(listed, REWARDS, "algorithm.kl={estimator: Full, coefficient: 0.1}")) == []


def test_two_models_of_one_name_are_reported():
    twice = "models=[{name: left, path: a}, {name: right, path: b}, {name: left, path: c}]"
    (reported,) = problems(REWARDS, KL_OFF, twice, dag(*LEFT, *RIGHT))
    assert (reported.path, reported.message) == ("spec.models[2].name", "the name is taken by spec.models[0]")


def test_templates_are_those_of_policies():
    models = MODELS.replace("models/right", "models/right, chatTemplate: {a: 1}")
    assert result(*LEFT, *RIGHT, base=(models, REWARDS, KL_OFF)) == []
    alone = result(*pipeline("left"), base=(models, "rewards=[{name: correct, run: 'm:f'}]", KL_OFF))
    assert ("models[1].chatTemplate", True) in [(path, "Write it under left." in text) for path, text in alone]


def test_validation_asks_no_model_first_whoever_is_validated():
    models = MODELS.replace("}]", "}, {name: taste, path: models/taste}]")
    rewards = "rewards=[{name: correct, run: 'm:correct'}, {name: nice, run: RewardModel, model: taste}]"
    grade = "name: grade, run: RewardModel, models: [taste], after: [rollout_right]"
    right = [stage.replace("[short]", "[nice]") for stage in RIGHT]
    right[1] = right[1].replace("after: [rollout_right]", "after: [rollout_right, grade]")
    data = "data.validation=[{path: v.parquet}]"
    problems = result(*LEFT, grade, *right, base=(models, rewards, KL_OFF, data))
    assert [path for path, _ in problems] == ["rewards[1].model"]
    assert result(*LEFT, grade, *right, base=(models, rewards, KL_OFF)) == []


def test_the_stage_that_makes_a_policy_is_one_of_the_catalogue():
    assert STAGES[UPDATE_POLICY].use == "Trains" and "UpdatePolicy" not in SMALL
