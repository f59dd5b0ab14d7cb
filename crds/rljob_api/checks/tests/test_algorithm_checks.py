"""Contradictions within `spec.algorithm`: each is refused where it stands, with the reason and the fix."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.catalogue.algorithms import ALGORITHMS, CORRECTIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import ADVANTAGE, REWARD, ROLLOUT, TWO_GROUPS, UPDATE, dag, make_plan, problems

AFTER_ROLLOUT = UPDATE.replace(", reference]", "]")
OWN_PENALTY = "name: mine, run: 'm:f', after: [reward, reference], reads: [rewards, ref_log_probs], writes: [mine]"
REFERENCE = "name: reference, run: LogProbs, models: [reference], after: [rollout]"


@pytest.mark.parametrize(
    ("algorithm", "path", "reason", "fix"),
    [
        # parts
        ("advantage: {estimator: GRP0}", "advantage.estimator", "no such estimator", "Did you mean GRPO?"),
        ("advantage: {estimator: m.f}", "advantage.estimator", "no such estimator", "module:function"),
        ("loss: {name: PPO-Clip}", "loss.name", "no such loss", "Did you mean PPOClip?"),
        ("loss: {name: 'm:f:g'}", "loss.name", "no such loss", "module:function"),
        ("loss: {aggregation: TokenMeen}", "loss.aggregation", "no such aggregation", "Did you mean TokenMean?"),
        ("kl: {estimator: K4}", "kl.estimator", "no such KL estimator", "module:function"),
        # group sizes
        ("groupSize: 1", "groupSize", "every advantage is 0", "Write 2 or more"),
        ("advantage: {estimator: RLOO}, groupSize: 1", "groupSize", "RLOO compares", "Write 2 or more"),
        ("advantage: {estimator: GRPOPassK}, groupSize: 1", "groupSize", "GRPOPassK compares", "Write 2 or more"),
        ("advantage: {estimator: OPO}, groupSize: 1", "groupSize", "OPO compares", "Write 2 or more"),
        ("advantage: {estimator: CPGD}, groupSize: 1", "groupSize", "CPGD compares", "Write 2 or more"),
        ("name: ReinforcePlusPlusBaseline, groupSize: 1", "groupSize", "every advantage is 0", "Write 2 or more"),
        # options of another estimator
        ("critic: {}", "critic", "GRPO has no critic", "Leave critic out"),
        ("advantage: {gamma: 0.9}", "advantage.gamma", "GRPO does not look at it", "GAE"),
        ("advantage: {lambda: 0.9}", "advantage.lambda", "does not look at it", "it is for GAE, MARFT"),
        ("advantage: {weighting: Uniform}", "advantage.weighting", "does not look at it", "it is for CPGD"),
        ("name: DrGRPO, advantage: {normalizeStd: true}, loss: {dualClip: 0.5}", "loss.dualClip", "above 1", "3.0"),
        ("name: RLOO, advantage: {normalizeStd: false}", "advantage.normalizeStd", "does not look", "GRPO, GRPOPassK"),
        ("name: PPO, advantage: {normalizeStd: false}", "advantage.normalizeStd", "GAE does not look", "GRPO"),
        ("advantage: {reads: [x]}", "advantage.reads", "does not look at it", "a function of your own"),
        ("advantage: {options: {a: 1}}", "advantage.options", "does not look at it", "a function of your own"),
        # the loss
        ("loss: {clipHigh: 0.1}", "loss.clipHigh", "tighter than clipLow", "0.2 or more"),
        ("name: GSPO, loss: {clipHigh: 0.0001}", "loss.clipHigh", "tighter than clipLow", "0.0003 or more"),
        ("loss: {dualClip: 1.0}", "loss.dualClip", "above 1", "Write 3.0"),
        ("name: CISPO, loss: {clipLow: 0.1}", "loss.clipLow", "CISPO does not look at it", "PPOClip"),
        ("name: GPG, loss: {clipHigh: 0.3}", "loss.clipHigh", "GPG does not look at it", "it is for PPOClip"),
        ("name: GSPO, loss: {dualClip: 3.0}", "loss.dualClip", "GSPO does not look at it", "it is for PPOClip"),
        ("loss: {driftCoefficient: 0.1}", "loss.driftCoefficient", "does not look at it", "it is for CPGD"),
        ("loss: {driftClip: 1.0}", "loss.driftClip", "does not look at it", "it is for CPGD"),
        ("loss: {covarianceFraction: 0.1}", "loss.covarianceFraction", "does not look", "it is for ClipCov, KLCov"),
        ("name: KLCov, loss: {covarianceLow: 2.0}", "loss.covarianceLow", "KLCov does not look", "it is for ClipCov"),
        ("loss: {klCoefficient: 0.1}", "loss.klCoefficient", "does not look at it", "it is for KLCov"),
        ("loss: {temperaturePositive: 2.0}", "loss.temperaturePositive", "does not look at it", "it is for SAPO"),
        ("loss: {temperatureNegative: 2.0}", "loss.temperatureNegative", "does not look at it", "it is for SAPO"),
        ("loss: {divergenceThreshold: 0.3}", "loss.divergenceThreshold", "does not look", "it is for DPPOTV, DPPOKL"),
        ("name: ClipCov, loss: {covarianceHigh: 1.0}", "loss.covarianceHigh", "no covariance", "more than 1.0"),
        ("loss: {reads: [x]}", "loss.reads", "does not look at it", "a function of your own"),
        ("loss: {options: {a: 1}}", "loss.options", "does not look at it", "a function of your own"),
        (
            "name: GSPO, loss: {aggregation: TokenMean}",
            "loss.aggregation",
            "one ratio per row",
            "SequenceMeanTokenMean",
        ),
        (
            "loss: {name: GMPO, aggregation: SequenceMeanTokenSum}",
            "loss.aggregation",
            "one ratio",
            "SequenceMeanTokenMean",
        ),
        (
            "name: GSPOToken, loss: {aggregation: SequenceMeanTokenSumNorm}",
            "loss.aggregation",
            "one ratio",
            "TokenMean",
        ),
        # KL
        ("kl: {coefficient: 0, target: 0.1}", "kl.target", "stays 0", "above 0"),
        ("kl: {target: 0.1, horizon: 1}", "kl.horizon", "could fall to 0 or below", "or more, or leave target out"),
        ("kl: {placement: Reward, estimator: K3Weighted}", "kl.estimator", "the weight corrects", "Write K1"),
        ("kl: {placement: Reward, estimator: K1Straight}", "kl.estimator", "straight-through", "Write K1"),
        ("kl: {placement: Reward, estimator: K3Straight}", "kl.estimator", "straight-through", "Write K1"),
        ("kl: {placement: Reward, estimator: Full}", "kl.estimator", "inside the update", "placement: Loss"),
        # corrections
        ("correction: {method: ICEPOP, lower: 5.0}", "correction.upper", "no ratio", "more than 5.0"),
        ("correction: {method: TruncatedImportance, lower: 3.0}", "correction.upper", "no ratio", "more than 3.0"),
        ("correction: {method: ICEPOP, level: Sequence}", "correction.level", "one by one", "Write Token"),
        (
            "correction: {method: ICEPOP, staleOnly: true}",
            "correction.staleOnly",
            "every token",
            "maxStaleness above 0",
        ),
        # sampling
        ("sampling: {oversampling: 1.5}", "sampling.oversampling", "drops no group", "Leave it out"),
        ("sampling: {maxRounds: 3}", "sampling.maxRounds", "drops no group", "Leave it out"),
        ("sampling: {successRange: {low: 0.1}}", "sampling.successRange", "drops no group", "Leave it out"),
        (
            "groupSize: 2, sampling: {dynamic: true, successRange: {low: 0.6}}",
            "sampling.successRange",
            "no group of 2",
            "larger groupSize",
        ),
        ("loss: {ratio: Decision}", "loss.ratio", "rollout.simulator alone", "Write Token"),
        ("name: GSPO, loss: {ratio: Decision}", "loss.ratio", "GSPO does not look at it", "it is for PPOClip"),
        ("name: PPO, sampling: {dynamic: true}", "sampling.dynamic", "never vary", "groupSize: 2"),
        ("sampling: {resampling: {method: PFPPO}}", "sampling.resampling", "not whole groups", "GAE"),
        (
            "name: PPO, loss: {name: KLCov}, sampling: {resampling: {method: PFPPO}}",
            "sampling.resampling",
            "as if every row counted once",
            "PPOClip",
        ),
        (
            "name: PPO, sampling: {resampling: {method: PFPPO, weighting: MaxMin, power: 3.0}}",
            "sampling.resampling.power",
            "does not look at it",
            "Leave it out",
        ),
        # lengths: the small job has at most 32 response tokens
        ("overlong: {bufferTokens: 32}", "overlong.bufferTokens", "no length is without penalty", "less than 32"),
    ],
)
def test_a_contradiction_is_one_problem_with_reason_and_fix(algorithm, path, reason, fix):
    name = "" if "name: " in algorithm.partition("{")[0] else "name: GRPO, "
    (problem,) = problems(f"algorithm={{{name}{algorithm}}}")
    assert problem.path == f"spec.algorithm.{path}"
    assert reason in problem.message
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        # placement is one field; a penalty of one's own in the rewards would be a second one
        (
            [dag(ROLLOUT, REWARD, REFERENCE, OWN_PENALTY, ADVANTAGE + ", rename: {rewards: mine}", UPDATE)],
            "stages[3].reads",
            "the loss has a KL penalty too",
        ),
        (
            ["algorithm.kl.coefficient=0", dag(ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE)],
            "stages[2]",
            "nothing uses",
        ),
        (
            ["algorithm.kl.estimator=Full", dag(ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE)],
            "stages[2]",
            "the update runs the reference itself",
        ),
        # a dag of one's own without what an option needs
        (
            ["algorithm.correction={method: ICEPOP}", dag(ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE)],
            "stages[4]",
            "run: LogProbs and models: [actor]",
        ),
        (
            ["algorithm={name: DAPO}", dag(ROLLOUT, REWARD, ADVANTAGE, AFTER_ROLLOUT)],
            "sampling.dynamic",
            "run: Sample",
        ),
        (
            [
                "algorithm={name: ReinforcePlusPlus, kl: {coefficient: 0}, sampling: {resampling: {method: PFPPO}}}",
                dag(ROLLOUT, REWARD, ADVANTAGE, AFTER_ROLLOUT),
            ],
            "sampling.resampling",
            "run: Sample",
        ),
        (
            ["algorithm={name: ReMax, kl: {coefficient: 0}}", dag(ROLLOUT, REWARD, ADVANTAGE, AFTER_ROLLOUT)],
            "stages[2]",
            "run: Sample in place of Rollout and Reward",
        ),
        (
            ["algorithm={name: PPO}", dag(ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE)],
            "stages[3]",
            "run: Values",
        ),
        (["algorithm={name: MARFT}"], "stage advantage of MARFT's own pipeline", "which agent wrote it"),
        (["algorithm={name: MARFT}"], "stage advantage of MARFT's own pipeline", "in which turn"),
        (
            ["algorithm.advantage={estimator: 'm:f', reads: [scores]}"],
            "stage advantage of GRPO's own pipeline",
            "reads column scores, which no stage writes",
        ),
        # sampling that can never succeed
        (["algorithm={name: DAPO}", "rewards.0.weight=0"], "sampling.dynamic", "every reward has weight 0"),
        (["algorithm={name: ReMax}", "rollout.temperature=0"], "rollout.temperature", "the baseline is the greedy"),
        (
            ["algorithm={name: GRPO}", "rollout.temperature=0"],
            "rollout.temperature",
            "to a prompt are one",
        ),
        (["algorithm.correction={method: ICEPOP}", "rollout.topP=0.9"], "rollout.topP", "full distribution"),
        (["algorithm={name: DAPO}", "rewards=[]"], "spec.rewards", "no reward function to call"),
        # the small job has 10 steps
        (["algorithm={name: PPO, critic: {warmupSteps: 10}}"], "spec.algorithm.critic.warmupSteps", "less than 10"),
    ],
)
def test_a_contradiction_with_the_rest_of_the_job(overrides, path, words):
    result = problems(*overrides)
    assert any(path in item.path and words in f"{item.message} {item.fix}" for item in result), result


@pytest.mark.parametrize(
    ("overrides", "path", "result"),
    [
        (["algorithm={name: DAPO}", "rewards.0.weight=0"], "spec.algorithm.sampling.dynamic", "true"),
        (["algorithm={name: PPO, sampling: {dynamic: true}}"], "spec.algorithm.sampling.dynamic", "true"),
        (["algorithm={name: DAPO}", dag(ROLLOUT, REWARD, UPDATE)], "spec.algorithm.sampling.dynamic", "true"),
        (["rollout.temperature=0"], "spec.rollout.temperature", "0"),
        (["algorithm.kl={coefficient: 0, target: 0.1}"], "spec.algorithm.kl.target", "0.1"),
        (["metadata.name=Größe"], "metadata.name", '"Größe"'),
        (["rewards=[]"], "spec.rewards", ""),
    ],
)
def test_the_found_value_is_reported(overrides, path, result):
    assert result in [problem.found for problem in problems(*overrides) if problem.path == path]


def test_one_reward_with_weight_is_enough_to_tell_groups_apart():
    rewards = "rewards=[{name: a, run: 'm:a', weight: 0}, {name: b, run: 'm:b'}]"
    assert problems("algorithm={name: DAPO}", rewards) == []


def test_every_estimator_whitens_and_every_loss_has_an_entropy_bonus():
    assert problems("algorithm={name: GRPO, advantage: {whiten: true}, loss: {entropyCoefficient: 0.01}}") == []
    assert problems("algorithm={name: GSPO, loss: {entropyCoefficient: 0.01}}") == []


def test_a_penalty_of_ones_own_is_the_only_one():
    advantage = "name: advantage, run: Advantage, after: [mine], rename: {rewards: mine}"
    stages = (ROLLOUT, REWARD, REFERENCE, OWN_PENALTY, advantage, UPDATE)
    assert problems("algorithm.kl.coefficient=0", dag(*stages)) == []
    twice = [problem for problem in problems(dag(*stages)) if "the loss has a KL penalty too" in problem.message]
    assert [item.found for item in twice] == ['"ref_log_probs"']
    # with the job's own penalty in the rewards, nothing is in the loss
    result = problems("algorithm.kl.placement=Reward", dag(*stages))
    assert not any("the loss has a KL penalty too" in problem.message for problem in result)


def test_parts_of_ones_own_take_any_option():
    mine = (
        "algorithm.advantage={estimator: 'm:f', gamma: 0.9, options: {a: 1}}",
        "algorithm.loss={name: 'm:g', clipLow: 0.1, driftCoefficient: 0.5, options: {b: [1, 2]}, aggregation: 'm:h'}",
        "algorithm.kl={estimator: 'm:k', coefficient: 0.1}",
        "algorithm.groupSize=1",
    )
    assert problems(*mine) == []


def test_the_kl_estimator_full_uses_the_reference_without_a_stage():
    models = "models=[{name: actor, path: a}, {name: reference, path: b}]"
    assert problems("algorithm.kl.estimator=Full", models) == []
    (problem,) = problems("algorithm.kl.coefficient=0", models)
    assert "no stage uses the model" in problem.message


def test_a_critic_goes_with_an_estimator_of_ones_own():
    plan = make_plan("algorithm={name: GRPO, advantage: {estimator: 'm:f'}, critic: {warmupSteps: 1}}")
    assert [stage.run for stage in plan.stages][-1] == "UpdateCritic"


def test_marft_with_the_columns_it_reads():
    agents = "name: agents, run: 'm:f', after: [rollout], reads: [response_mask], writes: [agent_ids, turn_ids]"
    stages = (
        ROLLOUT,
        REWARD,
        agents,
        "name: values, run: Values, after: [rollout]",
        "name: advantage, run: Advantage, after: [reward, values, agents]",
        "name: update, run: UpdatePolicy, after: [advantage]",
        "name: update_critic, run: UpdateCritic, after: [advantage]",
    )
    assert problems("algorithm={name: MARFT, kl: {coefficient: 0}}", dag(*stages)) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm={name: GPG, updateEpochs: 2}"], "the loss GPG has no probability ratio"),
        (["algorithm={name: ReinforcePlusPlus, groupSize: 4, sampling: {dynamic: true}}"], "would learn too"),
        (["algorithm={name: GRPO, kl: {estimator: K1}}"], "K1 in the loss"),
        (["algorithm={name: GRPO, kl: {estimator: AbsK1}}"], "AbsK1 in the loss"),
    ],
)
def test_what_is_allowed_and_probably_not_meant(overrides, words):
    (warning,) = warnings_of(make_plan(*overrides))
    assert words in warning


@settings(max_examples=40)
@given(
    name=st.sampled_from(list(ALGORITHMS)),
    estimator=st.sampled_from([*ESTIMATORS, None]),
    loss=st.sampled_from([*LOSSES, None]),
    kl=st.sampled_from([*KL_ESTIMATORS, None]),
    placement=st.sampled_from(["Loss", "Reward", None]),
    correction=st.sampled_from([*CORRECTIONS, None]),
    resampled=st.booleans(),
    epochs=st.integers(1, 2),
)
def test_whatever_is_combined_is_planned_or_refused(
    name, estimator, loss, kl, placement, correction, resampled, epochs
):
    algorithm = {
        "name": name,
        "updateEpochs": epochs,
        "advantage": {"estimator": estimator} if estimator else {},
        "loss": {"name": loss} if loss else {},
        "kl": ({"estimator": kl} if kl else {}) | ({"placement": placement} if placement else {}),
        "correction": {"method": correction} if correction else None,
        "sampling": {"resampling": {"method": "PFPPO"}} if resampled else {},
    }
    override = f"algorithm={json.dumps(algorithm)}"
    if result := problems(override):
        assert all(item.message and item.fix.endswith((".", "?")) for item in result)
        return
    plan = make_plan(override)
    assert type(plan).model_validate_json(plan.canonical_json()) == plan
    written = {column for stage in plan.stages for column in stage.writes}
    assert {column for stage in plan.stages for column in stage.reads} <= written


def test_a_coefficient_that_loses_nearly_all_of_itself_in_a_step_is_taken():
    """A fifth of itself in each horizon: 400 rows are five of 80, which leave nothing."""
    sizes = ("data.batchSize=100", "algorithm.groupSize=4", "algorithm.kl.target=0.1")
    (problem,) = problems(*sizes, "algorithm.kl.horizon=80")
    assert problem.fix == "Write 81 or more, or leave target out."
    assert problems(*sizes, "algorithm.kl.horizon=81") == []


def test_ratios_of_the_newest_weights_are_within_the_bounds():
    stale = (*TWO_GROUPS, "rollout.maxStaleness=2")
    assert problems(*stale, "algorithm.correction={method: ICEPOP, staleOnly: true, upper: 1}") == []
    assert problems(*stale, "algorithm.correction={method: ICEPOP, staleOnly: true, lower: 1}") == []
    assert problems(*stale, "algorithm.correction={method: ICEPOP, lower: 1.1}") == []
    for bounds in ("lower: 0, upper: 0.9", "lower: 1.1"):
        (problem,) = problems(*stale, f"algorithm.correction={{method: ICEPOP, staleOnly: true, {bounds}}}")
        assert (problem.path, problem.found) == ("spec.algorithm.correction.staleOnly", "true")
        assert "the ratio 1, which is outside the bounds" in problem.message
