"""How lengths are spread, what rounds would save, and what they carried on, in words."""

import numpy as np
import pytest

from rljob_worker.metrics.response_lengths import (
    LEAST_SPREAD,
    carried_sentence,
    lengths_sentence,
    partial_settings,
)
from rljob_worker.stages.draws.assembly import Assembly, Outcome


def lengths(step, mean, longest, **more):
    return {"step": step, "response_length/mean": mean, "response_length/max": longest, **more}


def carried(step, groups=10.0, rows=30.0, mean_age=0.5, oldest=3.0, cut=0.0):
    """A step with `rollout.partial`, whose lengths would be worth a proposal without it."""
    return lengths(step, 200.0, 4000.0) | {
        "partial/groups_unfinished": groups, "partial/rows_unfinished": rows, "partial/rows_cut_off": cut,
        "partial/age_mean": mean_age, "partial/age_max": oldest,
    }  # fmt: skip


def test_a_long_tail_is_proposed_rounds_of_about_the_mean_response():
    """Means 200 and 220: 210, whose nearest power of two is 256. Longest 3660 and 3900: 3780 = 18 x 210 in the mean.
    4096 tokens are 16 rounds, a first one and 15 carries; 3900 are 16 as well."""
    assert lengths_sentence([lengths(1, 200.0, 3660.0), lengths(2, 220.0, 3900.0)], 4096) == (
        "responses have 210 tokens in the mean and up to 3,900: a step decodes its longest for 18.0 times as long as "
        "the mean (mean of steps 1 to 2); rollout.partial: {tokensPerRound: 256, maxCarries: 15} would end it after "
        "about two rounds of 256 tokens, and carry its longest on for up to 15 steps: docs/long-tail.md"
    )


@pytest.mark.parametrize(
    ("mean", "longest", "is_proposed"),
    [
        (100.0, 400.0, True),
        (100.0, 399.0, False),  # 3.99 times the mean
        (64.0, 256.0, True),
        (10.0, 255.0, False),  # 25 times the mean, but short
        (0.0, 0.0, False),
    ],
)
def test_a_proposal_is_made_where_it_saves_steps_of_decoding(mean, longest, is_proposed):
    sentence = lengths_sentence([lengths(7, mean, longest)], 1024)
    assert ("rollout.partial" in sentence) is is_proposed
    assert sentence.startswith(f"responses have {mean:.0f} tokens in the mean and up to {longest:.0f}")
    assert "(step 7)" in sentence


@pytest.mark.parametrize(
    ("mean", "limit", "settings"),
    [
        (181.0, 1024, (128, 7)),  # 181 / 128 = 1.4141 and 256 / 181 = 1.4144
        (182.0, 1024, (256, 3)),
        (256.0, 1025, (256, 4)),  # the last token takes a fifth round
        (0.5, 2, (1, 1)),
        (4.0, 4096, (4, 1023)),  # 1024 rounds
        (4.0, 4101, (8, 512)),  # 1026 rounds of 4 tokens are 1025 carries, more than a job may have; 513 of 8
    ],
)
def test_rounds_and_carries_that_cut_nothing_off(mean, limit, settings):
    tokens, carries = partial_settings(mean, limit)
    assert (tokens, carries) == settings
    assert tokens * (carries + 1) >= limit


def test_lengths_are_those_of_the_last_twenty_steps_that_drew_responses():
    """Step 0 is a validation; steps 1 to 5 have another mean."""
    lines = [{"step": 0, "validation/accuracy": 1.0}, *(lengths(step, 900.0, 900.0) for step in range(1, 6))]
    lines += [lengths(step, 100.0, 150.0) for step in range(6, 26)]
    assert lengths_sentence(iter(lines), 1024) == (
        "responses have 100 tokens in the mean and up to 150: a step decodes its longest for 1.5 times as long as the "
        "mean (mean of steps 6 to 25)"
    )
    assert lengths_sentence(lines[:1], 1024) == lengths_sentence([], 1024) == ""


def test_a_run_with_rounds_says_what_it_carried_on():
    """Groups (10 + 15) / 2, responses (30 + 50) / 2, ages (0.5 + 1) / 2, the oldest of both."""
    lines = [lengths(1, 5.0, 9.0), carried(2), carried(3, 15.0, 50.0, 1.0, 7.0)]
    sentence = (
        "12.5 groups with 40.0 unfinished responses go on after a step; responses of a batch began 0.75 steps before "
        "it in the mean and 7 at most (mean of steps 2 to 3)"
    )
    assert carried_sentence(lines) == lengths_sentence(lines, 4096) == sentence
    assert carried_sentence(lines[:1]) == ""


def test_responses_that_were_cut_off_are_counted_over_the_steps():
    assert "; 3 were cut off, which a larger rollout.partial.maxCarries lets go on (" in carried_sentence(
        [carried(1, cut=1.0), carried(2), carried(3, cut=2.0)]
    )


@pytest.mark.parametrize("spread", ["lognormal", "exponential", "few_are_long"])
@pytest.mark.parametrize("batch_size, group_size", [(32, 8), (16, 4)])
def test_a_step_takes_about_two_rounds_however_lengths_are_spread(spread, batch_size, group_size):
    """What proposals go by. The mean of 200 tokens is a round; a step has 1.5 to 2.2 of them over 40 steps."""
    rng = np.random.default_rng(1)
    draws = {
        "lognormal": lambda: rng.lognormal(4.8, 1.0, group_size),
        "exponential": lambda: rng.exponential(200.0, group_size),
        "few_are_long": lambda: np.where(rng.random(group_size) < 0.05, 3000.0, 55.0),
    }
    left: dict[int, int] = {}
    assembly, rounds = Assembly(batch_size, 0, np.empty(0, np.int64)), []
    for _ in range(60):
        while assembly.has_work:
            numbers = [*assembly.unfinished.tolist(), *assembly.draw(1.0).tolist()]
            for number in numbers:
                # rounds that the longest response of a group takes
                left[number] = left.get(number) or int(np.ceil(draws[spread]().max() / 200))
                left[number] -= 1
            outcomes = [Outcome.UNFINISHED if left[number] else Outcome.ACCEPTED for number in numbers]
            assembly = assembly.after(np.array(outcomes, np.int64))
        rounds.append(assembly.num_rounds)
        assembly = Assembly(batch_size, assembly.next_number, assembly.surplus, unfinished=assembly.unfinished)
    assert 1.5 < np.mean(rounds[20:]) < 2.2
    assert LEAST_SPREAD > 2.2 * 2**0.5, "so many means are two rounds at most"
