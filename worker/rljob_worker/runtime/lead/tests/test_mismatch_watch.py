"""Which steps end a job by `rollout.maxMismatch`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rljob_api.tests.builders import make_plan
from rljob_api.v1alpha1 import MaxMismatchSpec, RLJobSpec
from rljob_worker.errors import BadData
from rljob_worker.runtime.lead.mismatch_watch import DEFAULT_WITH_PICTURES, METRIC, MismatchWatch, limit_of


def spec_of(*overrides: str, images: str | None = None) -> RLJobSpec:
    spec = make_plan(*overrides).spec
    return spec.model_copy(update={"data": spec.data.model_copy(update={"images_column": images})})


def ending_step(spec: RLJobSpec, values: Sequence[float], name: str = METRIC) -> int | None:
    """The first step, from 1 on, that ends the job."""
    watch = MismatchWatch(spec)
    for step, value in enumerate(values, start=1):
        try:
            watch.check(step, {name: value})
        except BadData:
            return step
    return None


LIMIT = "rollout.maxMismatch={probsDiffMax: 0.1, steps: 2}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.2, 0.2], 2), ([0.2, 0.1, 0.2, 0.05], None), ([0.0, 0.2, 0.05, 0.2, 0.3], 5), ([0.1] * 5, None)],
)
def test_steps_in_a_row_above_the_limit_end_the_job(values: list[float], expected: int | None) -> None:
    assert ending_step(spec_of(LIMIT), values) == expected


def test_policies_are_counted_by_themselves() -> None:
    watch = MismatchWatch(spec_of(LIMIT))
    left, right = f"policy/left/{METRIC}", f"policy/right/{METRIC}"
    watch.check(1, {left: 0.2, right: 0.0})
    watch.check(2, {left: 0.0, right: 0.2})
    with pytest.raises(BadData, match=r"tokens of policy right is not .* is 0\.2, above .*: 0\.1 in 2 steps"):
        watch.check(3, {left: 0.2, right: 0.2})


def test_the_columns_are_named() -> None:
    watch = MismatchWatch(spec_of(images="photos"))
    watch.check(1, {METRIC: 0.3})
    with pytest.raises(BadData, match=r"prompt_ids, response_ids and images \(data.imagesColumn: photos\)"):
        watch.check(2, {METRIC: 0.3})


def test_without_pictures_nothing_is_bounded_unless_the_job_says_so() -> None:
    assert limit_of(spec_of()) is None
    assert limit_of(spec_of(LIMIT)) == MaxMismatchSpec(probs_diff_max=0.1, steps=2)
    assert ending_step(spec_of(), [1.0] * 5) is None


@pytest.mark.parametrize(
    ("overrides", "has_default"),
    [
        ([], True),
        (["training.precision=BFloat16"], False),
        (["workerGroups=[{name: train}, {name: rollout}]", "rollout.maxStaleness=1"], False),
        (["rollout.partial={tokensPerRound: 8, maxCarries: 1}"], False),
    ],
)
def test_with_pictures_the_default_is_for_what_differs_by_rounding_alone(
    overrides: list[str], has_default: bool
) -> None:
    assert (limit_of(spec_of(*overrides, images="images")) == DEFAULT_WITH_PICTURES) is has_default
