"""Warnings about jobs that learn from rows of older weights as if the newest had drawn them."""

import pytest

from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import GRPO, TWO_GROUPS, UPDATE, dag, make_plan

STALE = (*TWO_GROUPS, "rollout.maxStaleness=2")


def stale_warnings(*overrides):
    return [warning for warning in warnings_of(make_plan(*overrides)) if "behind those that a step begins" in warning]


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("{name: GPG}", "the loss GPG has no probability ratio"),
        ("{name: Reinforce}", "the loss Reinforce has no probability ratio"),
        # without old log-probs, and with those of a LogProbs stage
        ("{name: GRPO}", "the ratio of the loss PPOClip is to the newest weights, not to those that drew the rows"),
        ("{name: GSPO, updateEpochs: 2}", "the ratio of the loss GSPO is to the newest weights"),
        ("{name: GRPO, loss: {name: 'm:f'}}", "the ratio of the loss m:f is to the newest weights"),
    ],
)
def test_rows_of_older_weights_that_nothing_corrects(algorithm, words):
    (warning,) = stale_warnings(*STALE, f"algorithm={algorithm}")
    assert warning.startswith("with rollout.maxStaleness 2 rows are drawn with weights up to 2 versions behind those")
    assert words in warning
    assert warning.endswith("set algorithm.correction: {method: TruncatedImportance, upper: 2}")
    # with what it advises, and where no weights are older
    corrected = "algorithm.correction={method: TruncatedImportance, upper: 2}"
    assert stale_warnings(*STALE, f"algorithm={algorithm}", corrected) == []
    assert stale_warnings(*TWO_GROUPS, f"algorithm={algorithm}") == []


OWN_OLD = "name: old, run: 'm:old', after: [rollout], reads: [response_ids], writes: [old_log_probs], group: train"


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm={name: GRPO, loss: {name: 'm:f', reads: [rollout_log_probs]}}"],
        # the ratio is to the policy that drew the rows
        [dag(*GRPO[:-1], f"{UPDATE}, rename: {{old_log_probs: rollout_log_probs}}")],
        [dag(*GRPO[:-1], OWN_OLD, UPDATE.replace("reference]", "reference, old]"))],
    ],
    ids=["loss", "rename", "stage"],
)
def test_a_job_that_compares_with_what_drew_its_rows_is_not_warned(overrides):
    assert stale_warnings(*STALE, *overrides) == []


def test_rows_that_go_on_in_later_steps_are_older_by_as_many():
    partial = "rollout.partial={tokensPerRound: 8, maxCarries: 3}"
    (warning,) = stale_warnings(partial, "algorithm={name: GRPO}")
    assert warning.startswith("with rollout.partial rows are drawn with weights up to 3 versions behind those")
    (warning,) = stale_warnings(*STALE, partial, "algorithm={name: GRPO}")
    assert warning.startswith(
        "with rollout.maxStaleness 2 and rollout.partial rows are drawn with weights up to 5 versions"
    )


def test_responses_that_are_cut_off_before_they_are_as_long_as_they_may_be():
    def warning(carries):
        plan = make_plan(f"rollout.partial={{tokensPerRound: 6, maxCarries: {carries}}}")
        return [text for text in warnings_of(plan) if "cuts off" in text]

    # the small job has 32 response tokens: 6 x 5 = 30, 6 x 6 = 36
    assert warning(5) == []
    (text,) = warning(4)
    assert "more than 30 tokens" in text and text.endswith("allows 32: with maxCarries 5 none is")
