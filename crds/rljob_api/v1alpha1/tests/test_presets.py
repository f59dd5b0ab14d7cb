"""What each algorithm's name stands for, and the stages that it and its options ask for."""

from typing import get_args

import pytest

from rljob_api.catalogue.algorithms import AGGREGATIONS, ALGORITHMS, CORRECTIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.tests.builders import TWO_GROUPS, make_job, make_plan
from rljob_api.v1alpha1 import AdvantageSpec, AlgorithmSpec, KLSpec, LossSpec, SamplingSpec, presets
from rljob_api.v1alpha1.algorithm import AlgorithmName, CorrectionMethod, CorrectionSpec


def stages(*overrides):
    """Stages of the algorithm's own pipeline: name -> those it comes after."""
    return {stage.name: list(stage.after) for stage in make_plan(*overrides).stages}


def reads(stage, *overrides):
    return set(make_plan(*overrides).stage(stage).reads)


def test_the_names_of_the_types_are_those_of_the_catalogue():
    assert get_args(AlgorithmName) == tuple(ALGORITHMS)
    assert get_args(CorrectionMethod) == tuple(CORRECTIONS) == tuple(presets.CORRECTION_OPTIONS)


@pytest.mark.parametrize("preset", ALGORITHMS.values(), ids=lambda preset: preset.name)
def test_a_preset_names_parts_of_the_catalogue_and_options_that_they_look_at(preset):
    estimator, loss = ESTIMATORS[preset.estimator], LOSSES[preset.loss]
    assert set(preset.advantage) <= {*estimator.options, "whiten"}
    assert set(preset.loss_options) <= {*loss.options, "aggregation"}
    assert set(preset.kl) <= set(presets.KL)
    assert preset.kl.get("estimator", "K3") in KL_ESTIMATORS
    assert preset.loss_options.get("aggregation", "TokenMean") in AGGREGATIONS
    assert preset.group_size >= estimator.min_group_size
    assert preset.purpose and preset.paper.startswith("https://")


def test_defaults_are_named_like_the_fields_they_fill():
    fields = {
        AdvantageSpec: [presets.ADVANTAGE, *presets.ESTIMATOR_OPTIONS.values()],
        LossSpec: [presets.LOSS, *presets.LOSS_OPTIONS.values()],
        KLSpec: [presets.KL],
        SamplingSpec: [presets.SAMPLING, *(preset.sampling for preset in ALGORITHMS.values())],
        CorrectionSpec: presets.CORRECTION_OPTIONS.values(),
    }
    for model, defaults in fields.items():
        assert {name for default in defaults for name in default} <= set(model.model_fields)
    assert set(presets.ESTIMATOR_OPTIONS) <= set(ESTIMATORS) and set(presets.LOSS_OPTIONS) <= set(LOSSES)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        # clip-higher, no KL, dynamic sampling: section 3 of the paper
        ("DAPO", {"loss.clip_high": 0.28, "kl.coefficient": 0.0, "sampling.dynamic": True, "overlong": None}),
        ("GSPO", {"loss.clip_low": 3e-4, "loss.clip_high": 4e-4, "loss.aggregation": "SequenceMeanTokenMean"}),
        ("DrGRPO", {"advantage.normalize_std": False, "loss.aggregation": "SequenceMeanTokenSumNorm"}),
        ("CPGD", {"advantage.estimator": "CPGD", "loss.name": "CPGD", "loss.drift_coefficient": 0.001}),
        ("CISPO", {"loss.clip_high": 5.0, "advantage.estimator": "GRPO"}),
        ("DPPO", {"loss.name": "DPPOTV", "loss.divergence_threshold": 0.15}),
        ("RLOO", {"kl.placement": "Reward", "kl.estimator": "K1", "advantage.whiten": False}),
        ("ReinforcePlusPlus", {"group_size": 1, "advantage.whiten": True, "kl.placement": "Reward"}),
        ("Reinforce", {"group_size": 1, "advantage.whiten": False, "loss.name": "Reinforce"}),
        ("GRPO", {"group_size": 8, "kl.coefficient": 0.001, "loss.clip_high": 0.2, "sampling.dynamic": False}),
        ("PPO", {"group_size": 1, "advantage.estimator": "GAE", "advantage.whiten": True, "critic.clip_value": 0.2}),
    ],
)
def test_values_of_the_papers(name, values):
    algorithm = AlgorithmSpec(name=name)
    for path, expected in values.items():
        result = algorithm
        for part in path.split("."):
            result = getattr(result, part)
        assert result == expected, path


def test_a_loss_of_ones_own_choice_brings_its_own_bounds():
    loss = AlgorithmSpec.model_validate({"name": "DAPO", "loss": {"name": "GSPO", "clipHigh": 0.001}}).loss
    assert (loss.clip_low, loss.clip_high, loss.aggregation) == (3e-4, 0.001, "SequenceMeanTokenMean")
    # 0.28 belongs to DAPO's own loss
    assert AlgorithmSpec.model_validate({"name": "DAPO", "loss": {"name": "CPGD"}}).loss.clip_high == 0.2
    assert AlgorithmSpec.model_validate({"name": "DPPO", "loss": {"name": "DPPOKL"}}).loss.divergence_threshold == 0.05


def test_an_estimator_of_ones_own_choice_brings_its_whitening_and_critic():
    algorithm = AlgorithmSpec.model_validate({"name": "GRPO", "advantage": {"estimator": "GAE"}})
    assert algorithm.advantage.whiten and algorithm.critic is not None
    algorithm = AlgorithmSpec.model_validate({"name": "PPO", "groupSize": 4, "advantage": {"estimator": "RLOO"}})
    assert not algorithm.advantage.whiten and algorithm.critic is None


def test_a_correction_has_the_bounds_of_its_method():
    correction = CorrectionSpec.model_validate({"method": "SequenceRejection", "upper": 1.5})
    assert (correction.level, correction.lower, correction.upper) == ("SequenceGeometric", 0.99, 1.5)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("MARFT", "SRPO")])
def test_every_preset_is_a_job_and_survives_json(name):
    job = make_job(f"algorithm={{name: {name}}}")
    assert type(job).model_validate(job.to_json()) == job


def test_no_default_that_an_api_server_could_fill_in_wrongly():
    schema = AlgorithmSpec.model_json_schema()
    by_preset = {
        "AlgorithmSpec": {"groupSize", "advantage", "loss", "kl", "sampling"},
        "AdvantageSpec": {"estimator", "normalizeStd", "whiten"},
        "LossSpec": {"name", "clipLow", "clipHigh", "aggregation", "divergenceThreshold"},
        "KLSpec": {"estimator", "coefficient", "placement"},
        "SamplingSpec": {"dynamic"},
        "CorrectionSpec": {"level", "lower", "upper"},
    }
    for model, fields in by_preset.items():
        properties = schema["properties"] if model == "AlgorithmSpec" else schema["$defs"][model]["properties"]
        assert not [field for field in fields if "default" in properties[field]]


GRPO = "algorithm={name: GRPO}"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([GRPO], "rollout reference reward advantage update"),
        (["algorithm={name: DrGRPO}"], "rollout reward advantage update"),
        (["algorithm={name: DAPO}"], "sample advantage update"),
        (["algorithm={name: ReMax}"], "sample reference old_log_probs advantage update"),
        (["algorithm={name: RLOO}"], "rollout reference old_log_probs reward advantage update"),
        (["algorithm={name: Reinforce}"], "rollout reward advantage update"),
        (["algorithm={name: PPO}"], "rollout reference values reward advantage update update_critic"),
        (
            ["algorithm={name: PPO, sampling: {resampling: {method: PFPPO}}}"],
            "sample reference values advantage update update_critic",
        ),
        (["algorithm={name: ClipCov}"], "rollout old_log_probs reward advantage update"),
        (["algorithm={name: GRPO, kl: {estimator: Full}}"], "rollout reward advantage update"),
        # what makes the log-probabilities from before the update necessary
        (["algorithm={name: GSPO, updateEpochs: 2}"], "rollout old_log_probs reward advantage update"),
        (["algorithm={name: GSPO}", "training.miniBatchRows=8"], "rollout old_log_probs reward advantage update"),
        (["algorithm={name: GPG, updateEpochs: 2}"], "rollout reward advantage update"),
        (
            ["algorithm={name: GPG, updateEpochs: 2, kl: {estimator: K3Weighted, coefficient: 0.01}}"],
            "rollout reference old_log_probs reward advantage update",
        ),
        (
            ["algorithm={name: GSPO, correction: {method: TruncatedImportance}}"],
            "rollout old_log_probs reward advantage update",
        ),
        (
            ["algorithm={name: GSPO, loss: {name: 'm:f', reads: [old_log_probs, ref_log_probs]}}"],
            "rollout reference old_log_probs reward advantage update",
        ),
    ],
)
def test_a_pipeline_has_exactly_the_stages_that_its_options_need(overrides, names):
    assert " ".join(stages(*overrides)) == names


def test_scores_come_before_what_reads_them():
    after = stages("algorithm={name: RLOO, updateEpochs: 2}")
    assert after["advantage"] == ["reward", "reference", "old_log_probs"]
    assert after["update"] == ["advantage", "old_log_probs"]
    assert stages("algorithm={name: PPO}")["advantage"] == ["reward", "values"]
    assert stages("algorithm={name: DAPO, kl: {coefficient: 0.01}}")["reference"] == ["sample"]


@pytest.mark.parametrize("correction", ["null", "{method: ICEPOP}"])
def test_what_the_rollout_said_of_its_tokens_is_compared_in_every_job(correction):
    assert "rollout_log_probs" in reads("update", f"algorithm={{name: GSPO, correction: {correction}}}")


def test_versions_of_tokens_cross_where_tokens_may_be_stale():
    versions, stale = {"policy_version", "token_versions"}, (*TWO_GROUPS, "rollout.maxStaleness=1")
    corrected = "algorithm={name: GRPO, correction: {method: ICEPOP}}"
    assert reads("update", corrected) & versions == set()
    # of each row for metrics, of each token for what goes by tokens
    assert reads("update", *stale, corrected) & versions == {"policy_version"}
    assert reads("update", *stale, corrected.replace("ICEPOP", "ICEPOP, staleOnly: true")) >= versions


def test_columns_cross_only_where_an_option_reads_them():
    correct = "algorithm={name: GSPO, correction: {method: ICEPOP}}"
    assert "old_log_probs" in reads("update", correct)
    assert "old_log_probs" not in reads("update", "algorithm={name: GSPO}")
    assert "baseline_rewards" in reads("advantage", "algorithm={name: ReMax}")
    resample = "algorithm={name: PPO, sampling: {resampling: {method: PFPPO}}}"
    assert "row_weights" in reads("update", resample) & reads("update_critic", resample)
    mine = (
        "algorithm.advantage={estimator: 'm:f', reads: [truncated]}",
        "algorithm.loss={name: 'm:g', reads: [rewards]}",
    )
    assert "truncated" in reads("advantage", *mine) and "rewards" in reads("update", *mine)
