"""Is the KL penalty in one place, with the stages that feed it and no others?  Does a correction leave anything?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.columns import full_kl
from rljob_api.checks.subject import Subject, problem
from rljob_api.vocabulary.problem import Problem

_FOR_GRADIENTS = {
    "Full": "the sum over the vocabulary is made inside the update, after the rewards",
    "K1Straight": "a straight-through value has another gradient, and a penalty in the reward has none",
    "K3Straight": "a straight-through value has another gradient, and a penalty in the reward has none",
    "K3Weighted": "the weight corrects the gradient of a loss, and a penalty in the reward has none",
}
"""KL estimators that only make sense in the loss, and why."""

_STEEPEST = 5
"""In so many horizons the adaptive coefficient loses all of itself: a fifth in each."""


def check_kl(subject: Subject) -> Iterator[Problem]:
    """The KL penalty and the stages that feed it."""
    kl = subject.spec.algorithm.kl
    if kl.target is not None and kl.coefficient == 0:
        message = "a coefficient that starts at 0 stays 0, so it cannot adapt"
        yield problem("spec.algorithm.kl.target", kl.target, message, "Set coefficient above 0, or leave target out.")
    if kl.target is not None and (rows := subject.spec.num_rows) >= _STEEPEST * kl.horizon:
        message = f"a step has {rows} rows, over which the coefficient could fall to 0 or below and reward divergence"
        least = rows // _STEEPEST + 1
        yield problem("spec.algorithm.kl.horizon", kl.horizon, message, f"Write {least} or more, or leave target out.")
    if kl.placement == "Reward" and kl.estimator in _FOR_GRADIENTS:
        fix = "Write K1, or placement: Loss."
        yield problem("spec.algorithm.kl.estimator", kl.estimator, _FOR_GRADIENTS[kl.estimator], fix)
    yield from _unused_reference(subject)
    yield from _two_places(subject)


def _unused_reference(subject: Subject) -> Iterator[Problem]:
    """A reference stage whose numbers nothing reads."""
    stages = subject.resolution.stages.values()
    if any("ref_log_probs" in stage.columns.reads for stage in stages):
        return
    if full_kl(subject.spec):
        message = "with the KL estimator Full the update runs the reference itself, so nothing uses these numbers"
        fix = "Leave the stage out, or write another kl.estimator."
    else:
        message = "the stage computes reference log-probabilities, but kl.coefficient is 0, so nothing uses them"
        fix = "Leave the stage out, or set kl.coefficient above 0."
    for stage in stages:
        if "ref_log_probs" in stage.columns.writes and stage.built_in is not None:
            yield problem(subject.stage_path(stage.name), stage.name, message, fix)


def _two_places(subject: Subject) -> Iterator[Problem]:
    """A penalty of the user's own in the rewards, and one in the loss."""
    kl = subject.spec.algorithm.kl
    if kl.coefficient == 0 or kl.placement == "Reward":
        return
    for stage in subject.resolution.stages.values():
        if stage.built_in is None and "ref_log_probs" in stage.columns.reads and "rewards" in stage.columns.reads:
            message = f"{stage.name} makes rewards from reference log-probabilities, and the loss has a KL penalty too"
            fix = "Keep one of the two: set kl.coefficient to 0, or leave ref_log_probs out of reads."
            yield problem(subject.stage_path(stage.name, "reads"), "ref_log_probs", message, fix)


def check_correction(subject: Subject) -> Iterator[Problem]:
    """Bounds that let something through, at a level that the method has."""
    correction = subject.spec.algorithm.correction
    if correction is None:
        return
    path = "spec.algorithm.correction"
    if correction.lower >= correction.upper:
        message = f"no ratio is above lower {correction.lower} and below this"
        yield problem(f"{path}.upper", correction.upper, message, f"Write more than {correction.lower}.")
    if correction.method == "ICEPOP" and correction.level != "Token":
        message = "ICEPOP judges tokens one by one"
        yield problem(f"{path}.level", correction.level, message, "Write Token, or method: MaskedImportance.")
