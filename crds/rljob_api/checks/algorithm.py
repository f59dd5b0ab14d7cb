"""Does the algorithm's every part exist, and does it look at every option that is set?  Is the KL penalty in one place,
with the stages that feed it and no others?  Does a correction leave anything?"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from rljob_api.catalogue.algorithms import AGGREGATIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import presets
from rljob_api.vocabulary.model import ApiModel
from rljob_api.vocabulary.problem import Problem, suggestion

_PATH = "spec.algorithm"

_FOR_GRADIENTS = {
    "Full": "the sum over the vocabulary is made inside the update, after the rewards",
    "K1Straight": "a straight-through value has another gradient, and a penalty in the reward has none",
    "K3Straight": "a straight-through value has another gradient, and a penalty in the reward has none",
    "K3Weighted": "the weight corrects the gradient of a loss, and a penalty in the reward has none",
}
"""KL estimators that only make sense in the loss, and why."""

_STEEPEST = 5
"""Number of horizons in which the adaptive coefficient loses all of itself: a fifth in each."""


def check_parts(subject: Subject) -> Iterator[Problem]:
    """Names of estimator, loss, aggregation and KL estimator."""
    algorithm = subject.spec.algorithm
    yield from _part("advantage.estimator", algorithm.advantage.estimator, ESTIMATORS, "estimator")
    yield from _part("loss.name", algorithm.loss.name, LOSSES, "loss")
    yield from _part("loss.aggregation", algorithm.loss.aggregation, AGGREGATIONS, "aggregation")
    yield from _part("kl.estimator", algorithm.kl.estimator, KL_ESTIMATORS, "KL estimator")


def check_estimator(subject: Subject) -> Iterator[Problem]:
    """What the estimator needs, and options that it does not look at."""
    algorithm = subject.spec.algorithm
    estimator = ESTIMATORS.get(algorithm.advantage.estimator)
    if estimator is None:
        return
    if algorithm.group_size < estimator.min_group_size:
        message = f"{estimator.name} compares the responses to one prompt, so one response says nothing: every "
        fix = "Write 2 or more, or use the estimator GAE."
        yield problem(f"{_PATH}.groupSize", algorithm.group_size, message + "advantage is 0", fix)
    if algorithm.critic is not None and not estimator.has_critic:
        fix = "Leave critic out, or use the estimator GAE."
        yield problem(f"{_PATH}.critic", algorithm.critic.to_json(), f"{estimator.name} has no critic", fix)
    preset = presets.PRESETS[algorithm.name]
    defaults = presets.advantage_defaults(preset, estimator.name)
    seen = ("whiten", *estimator.options)
    yield from unseen("advantage", estimator.name, algorithm.advantage, defaults, seen)


def check_loss(subject: Subject) -> Iterator[Problem]:
    """Bounds of the policy loss, and options that it does not look at."""
    loss = subject.spec.algorithm.loss
    entry = LOSSES.get(loss.name)
    bounds = {"clip_low", "clip_high"}
    if bounds <= set(entry.options if entry else bounds) and loss.clip_high < loss.clip_low:
        message = f"the upper bound is tighter than clipLow {loss.clip_low}, which lets the policy only forget"
        yield problem(f"{_PATH}.loss.clipHigh", loss.clip_high, message, f"Write {loss.clip_low} or more.")
    if loss.dual_clip is not None and loss.dual_clip <= 1:
        message = "the bound must be above 1, or it replaces the loss of tokens that are not clipped at all"
        yield problem(f"{_PATH}.loss.dualClip", loss.dual_clip, message, "Write 3.0, or leave it out.")
    looks_at_ratio = entry is not None and "ratio" in entry.options
    if looks_at_ratio and loss.ratio == "Decision" and subject.spec.rollout.simulator is None:
        message = "a row is a decision in jobs with rollout.simulator alone"
        yield problem(f"{_PATH}.loss.ratio", loss.ratio, message, "Write Token, or the loss GSPO for a ratio per row.")
    if loss.covariance_low >= loss.covariance_high:
        message = f"no covariance is above covarianceLow {loss.covariance_low} and below this"
        fix = f"Write more than {loss.covariance_low}."
        yield problem(f"{_PATH}.loss.covarianceHigh", loss.covariance_high, message, fix)
    if entry is None:
        return
    if entry.is_sequence_level and loss.aggregation in AGGREGATIONS and loss.aggregation != "SequenceMeanTokenMean":
        message = f"{entry.name} has one ratio per row, and this would weigh a row by the number of its tokens"
        yield problem(f"{_PATH}.loss.aggregation", loss.aggregation, message, "Write SequenceMeanTokenMean.")
    defaults = presets.loss_defaults(presets.PRESETS[subject.spec.algorithm.name], loss.name)
    seen = ("aggregation", "entropy_coefficient", *entry.options)
    yield from unseen("loss", entry.name, loss, defaults, seen)


def unseen(
    field: str, reader: str, options: ApiModel, defaults: Mapping[str, Any], seen: Container[str]
) -> Iterator[Problem]:
    """Options other than `seen` that are set to something else than their default."""
    for name, info in type(options).model_fields.items():
        value = getattr(options, name)
        default = defaults.get(name, info.get_default(call_default_factory=True))
        if name not in seen and value != default:
            result = (
                value.to_json() if isinstance(value, ApiModel) else list(value) if isinstance(value, tuple) else value
            )
            message = f"{reader} does not look at it"
            yield problem(f"{_PATH}.{field}.{info.alias}", result, message, _unseen_fix(field, name))


def _unseen_fix(field: str, name: str) -> str:
    if name in ("reads", "options"):
        return "Leave it out; it is for a function of your own, written module:function."
    readers = _readers(field, name)
    return f"Leave it out; it is for {', '.join(readers)}." if readers else "Leave it out."


def _readers(field: str, name: str) -> list[str]:
    """The parts of the catalogue that look at an option."""
    parts: Iterable[tuple[str, tuple[str, ...]]] = ()
    if field == "advantage":
        parts = ((estimator.name, estimator.options) for estimator in ESTIMATORS.values())
    elif field == "loss":
        parts = ((loss.name, loss.options) for loss in LOSSES.values())
    return [part for part, options in parts if name in options]


def _part(path: str, name: str, known: Mapping[str, Any], what: str) -> Iterator[Problem]:
    if name not in known and USER_STAGE.match(name) is None:
        fix = f"{suggestion(name, known)} Your own {what} is written module:function."
        yield problem(f"{_PATH}.{path}", name, f"the catalogue has no such {what}", fix)


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
    if computes_full_kl(subject.spec):
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
    if not correction.stale_only:
        return
    rollout = subject.spec.rollout
    if rollout.max_staleness == 0 and rollout.partial is None:
        message = "with rollout.maxStaleness 0 every token is drawn with the newest weights, so nothing is corrected"
        fix = "Leave it out, or write rollout.maxStaleness above 0 or rollout.partial."
        yield problem(f"{path}.staleOnly", True, message, fix)
    if not correction.lower <= 1 <= correction.upper:
        message = "tokens of the newest weights have the ratio 1, which is outside the bounds"
        yield problem(f"{path}.staleOnly", True, message, "Leave it out, or write lower and upper around 1.")
