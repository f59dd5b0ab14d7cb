"""Does the algorithm's every part exist, and does it look at every option that is set?"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from rljob_api.catalogue.algorithms import AGGREGATIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import LossSpec, presets
from rljob_api.vocabulary.model import ApiModel
from rljob_api.vocabulary.problem import Problem, suggestion

_PATH = "spec.algorithm"


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
    if {"clip_low", "clip_high"} <= set(entry.options if entry else ("clip_low", "clip_high")):
        yield from _clip(loss)
    if loss.dual_clip is not None and loss.dual_clip <= 1:
        message = "the bound must be above 1, or it replaces the loss of tokens that are not clipped at all"
        yield problem(f"{_PATH}.loss.dualClip", loss.dual_clip, message, "Write 3.0, or leave it out.")
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
            found = list(value) if isinstance(value, tuple) else value
            message = f"{reader} does not look at it"
            yield problem(f"{_PATH}.{field}.{info.alias}", found, message, _unseen_fix(field, name))


def _unseen_fix(field: str, name: str) -> str:
    if name in ("reads", "options"):
        return "Leave it out; it is for a function of your own, written module:function."
    readers = _readers(field, name)
    return f"Leave it out; it is for {', '.join(readers)}." if readers else "Leave it out."


def _readers(field: str, name: str) -> list[str]:
    """The parts of the catalogue that look at an option."""
    parts: Iterable[tuple[str, tuple[str, ...]]] = ()
    if field == "advantage":
        parts = ((each.name, each.options) for each in ESTIMATORS.values())
    elif field == "loss":
        parts = ((each.name, each.options) for each in LOSSES.values())
    return [part for part, options in parts if name in options]


def _clip(loss: LossSpec) -> Iterator[Problem]:
    if loss.clip_high < loss.clip_low:
        message = f"the upper bound is tighter than clipLow {loss.clip_low}, which lets the policy only forget"
        yield problem(f"{_PATH}.loss.clipHigh", loss.clip_high, message, f"Write {loss.clip_low} or more.")


def _part(path: str, name: str, known: Mapping[str, Any], what: str) -> Iterator[Problem]:
    if name not in known and USER_STAGE.match(name) is None:
        fix = f"{suggestion(name, known)} Your own {what} is written module:function."
        yield problem(f"{_PATH}.{path}", name, f"the catalogue has no such {what}", fix)
