"""Which groups make the batch: by draw number alone, on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.stages.draws.assembly import REJECTED, Assembly, Carries, Outcome, outcomes_of, share_of_rank

ACCEPTED, RIGHT, WRONG, SAME, OVERLONG, UNFINISHED, OUT_OF_RANGE = Outcome


def start(batch_size, carried=(), next_number=0):
    return Assembly(batch_size, next_number, np.array(carried, np.int64))


def outcomes(rewards, correct=None, truncated=None, *, mask_truncated=False):
    rewards = np.asarray(rewards, float)
    correct = rewards if correct is None else np.asarray(correct, float)
    truncated = np.zeros(rewards.shape, bool) if truncated is None else np.asarray(truncated, bool)
    return outcomes_of(rewards, correct, truncated, mask_truncated=mask_truncated).tolist()


def test_a_group_is_kept_when_its_rewards_vary_and_otherwise_named():
    assert outcomes([[1, 0], [1, 1], [0, 0], [0.5, 0.5], [-1, -1]]) == [ACCEPTED, RIGHT, WRONG, SAME, WRONG]


def test_the_first_reward_says_who_is_right_and_the_sum_what_varies():
    # right and polite, right and rude: the sum varies; both wrong, both polite: it does not
    assert outcomes([[1.5, 1.0], [0.5, 0.5]], correct=[[1, 1], [0, 0]]) == [ACCEPTED, WRONG]


def test_a_group_that_was_cut_off_says_so_and_teaches_only_while_the_loss_sees_it():
    rewards, truncated = [[0, 0], [0, 1], [0, 1], [1, 1]], [[1, 1], [1, 1], [1, 0], [1, 1]]
    assert outcomes(rewards, truncated=truncated) == [OVERLONG, ACCEPTED, ACCEPTED, RIGHT]
    assert outcomes(rewards, truncated=truncated, mask_truncated=True) == [OVERLONG, OVERLONG, ACCEPTED, OVERLONG]


def test_a_group_is_kept_when_as_many_are_right_as_the_job_wants():
    # of five 0, 1, 2, 4 and 5 are right; with shaped rewards, which vary all the same
    correct = [[at < right for at in range(5)] for right in (0, 1, 2, 4, 5)]
    rewards = np.array(correct) + 0.01 * np.arange(5)
    result = outcomes_of(
        rewards, np.array(correct, float), np.zeros((5, 5), bool), mask_truncated=False, success_range=(0.4, 0.8)
    )
    assert result.tolist() == [WRONG, OUT_OF_RANGE, ACCEPTED, ACCEPTED, RIGHT]


def test_rounds_by_hand():
    assembly = start(3, next_number=7)
    assert assembly.draw(1.0).tolist() == [7, 8, 9]
    assembly = assembly.after(np.array([ACCEPTED, WRONG, ACCEPTED]))
    assert (assembly.num_missing, assembly.next_number) == (1, 10)
    assert assembly.draw(1.5).tolist() == [10, 11]
    assembly = assembly.after(np.array([ACCEPTED, ACCEPTED]))
    assert (assembly.num_missing, assembly.num_rounds, assembly.num_drawn, assembly.num_accepted) == (0, 2, 5, 4)
    assert assembly.batch.tolist() == [7, 9, 10] and assembly.surplus.tolist() == [11]
    assert assembly.num_rejected == {RIGHT: 0, WRONG: 1, SAME: 0, OVERLONG: 0, OUT_OF_RANGE: 0}


def test_what_was_carried_over_comes_first_and_may_be_enough():
    assembly = start(2, carried=[4, 5, 6], next_number=9)
    assert assembly.num_missing == 0
    assert assembly.batch.tolist() == [4, 5] and assembly.surplus.tolist() == [6]
    assert start(4, carried=[4, 5, 6], next_number=9).draw(2.0).tolist() == [9, 10]


def test_a_multiple_that_binary_cannot_hold_draws_no_prompt_too_many():
    # 10 * 1.1 == 11.000000000000002
    assert len(start(10).draw(1.1)) == 11


@pytest.mark.parametrize(
    "dropped, words",
    [
        ([WRONG, WRONG, RIGHT], "2 all wrong, 1 all right. Most need easier prompts or a larger groupSize"),
        ([RIGHT, RIGHT, OVERLONG], "2 all right, 1 all cut off at maxResponseTokens. Most need harder prompts"),
        ([SAME, SAME, SAME], "3 all of one other reward. Most need a reward that tells responses apart"),
        ([OVERLONG, OVERLONG, SAME], "Most need a larger rollout.maxResponseTokens"),
    ],
)
def test_a_batch_that_does_not_fill_says_why(dropped, words):
    said = start(4).after(np.array([ACCEPTED, *dropped])).explain(step=6)
    assert "step 6 needs 4 groups whose rewards vary and has 1 after 1 rounds" in said
    assert "of 4 groups drawn 3 were dropped" in said and words in said


worlds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def fates_of(world):
    """What will become of every group, by draw number."""
    return world.choice(np.array([ACCEPTED, *REJECTED], np.int64), 2000, p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])


@given(worlds, st.integers(1, 12), st.integers(1, 6), st.floats(1.0, 3.0))
def test_the_batch_is_the_same_for_any_number_of_ranks(world, batch_size, dp_size, oversampling):
    fates = fates_of(world)
    alone, together = start(batch_size), start(batch_size)
    while alone.num_missing:
        alone = alone.after(fates[alone.draw(oversampling)])
    while together.num_missing:
        numbers = together.draw(oversampling)
        known = np.zeros(len(numbers), np.int64)  # the sum over ranks
        for rank in world.permutation(dp_size):
            mine = share_of_rank(numbers, rank, dp_size)
            known[share_of_rank(np.arange(len(numbers)), rank, dp_size)] += fates[mine]
        together = together.after(known)
    assert together.batch.tolist() == alone.batch.tolist() == np.flatnonzero(fates == ACCEPTED)[:batch_size].tolist()
    assert together.surplus.tolist() == alone.surplus.tolist()
    assert together.num_rejected == alone.num_rejected


@given(
    worlds,
    st.integers(1, 8),
    st.floats(1.0, 3.0),
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.none() | st.integers(0, 4),
)
def test_every_number_that_was_drawn_ends_in_one_way(world, batch_size, oversampling, policy_stays, last_rounds):
    """last_rounds: rounds of the last step that end before the job does; None: all do."""
    fates = fates_of(world)
    ends = {"trained on": [], "rejected": [], "surplus": [], "in flight": []}
    carried, following = np.empty(0, np.int64), 0
    for step, stays in enumerate(policy_stays, start=1):
        assembly = Assembly(batch_size, following, carried)
        is_last = step == len(policy_stays)
        while assembly.num_missing and not (is_last and assembly.num_rounds == last_rounds):
            numbers = assembly.draw(oversampling)
            assert numbers[0] == assembly.next_number and (np.diff(numbers) == 1).all()
            ends["rejected"] += numbers[fates[numbers] != ACCEPTED].tolist()
            assembly = assembly.after(fates[numbers])
        following = assembly.next_number
        if assembly.num_missing:  # the job ends in the middle of a round
            begun = assembly.draw(oversampling)
            ends["in flight"] += [*assembly.accepted.tolist(), *begun.tolist()]
            following += len(begun)
            break
        assert ends["trained on"] == sorted(ends["trained on"])  # ascending over the whole job
        ends["trained on"] += assembly.batch.tolist()
        carried = assembly.surplus if stays else assembly.surplus[:0]
        ends["surplus"] += [] if stays else assembly.surplus.tolist()
        if is_last:
            ends["in flight"] += carried.tolist()
    assert sorted(sum(ends.values(), [])) == list(range(following))


@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 100))
def test_ranks_share_ordinals_without_gap_or_overlap(number, dp_size, first):
    numbers = np.arange(first, first + number)
    shares = [share_of_rank(numbers, rank, dp_size) for rank in range(dp_size)]
    assert np.concatenate(shares).tolist() == numbers.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_cause_has_words_and_a_fix():
    for cause in REJECTED:
        assert "Most need" in start(1).after(np.array([cause])).explain(1)


def test_groups_that_are_not_complete_are_in_every_round_until_they_are():
    first = start(3, next_number=7).after(np.array([UNFINISHED, ACCEPTED, UNFINISHED]))
    assert (first.accepted.tolist(), first.unfinished.tolist()) == ([8], [7, 9])
    assert first.draw(1.0).tolist() == [10, 11]  # what is missing, though two are on their way
    second = first.after(np.array([ACCEPTED, UNFINISHED, ACCEPTED, UNFINISHED]))  # of 7 9 10 11
    assert (second.batch.tolist(), second.unfinished.tolist()) == ([7, 8, 10], [9, 11])
    assert (second.num_drawn, second.num_accepted, second.next_number) == (5, 3, 12)
    assert not second.has_work


def test_what_is_not_complete_has_a_round_in_a_step_whose_batch_is_there():
    assembly = Assembly(2, 9, np.array([4, 6]), np.array([5, 8]), Carries(3, (9,)))
    assert assembly.has_work and not len(assembly.draw(1.0))
    after = assembly.after(np.array([ACCEPTED, UNFINISHED]))
    assert (after.batch.tolist(), after.surplus.tolist(), after.unfinished.tolist()) == ([4, 5], [6], [8])
    assert not after.has_work


def test_no_more_groups_are_drawn_than_have_a_place_before_they_are_too_old():
    # maxCarries 2, batchSize 3: three batches, of which 5 places are taken
    assembly = Assembly(3, 20, np.array([7]), np.array([8, 9, 10, 11]), Carries(2, (20,)))
    assert assembly.num_missing == 2 and assembly.draw(2.0).tolist() == [20, 21, 22, 23]
    assert assembly.draw(1.0).tolist() == [20, 21]
    assert len(assembly.draw(9.0)) == 9 - 5


@pytest.mark.parametrize(
    ("left", "unfinished", "more"),
    [
        # drawn two steps ago: 0 .. 9, one step ago: 10 .. 19, now: 20 ..; of a batch of 2 there may be left 0, 2 and 4
        ([20, 21, 22, 23], [20], False),
        ([19, 20, 21, 22, 23], [19], True),
        ([18, 19, 20, 21], [18], False),
        ([17, 18, 19], [17], True),
        ([17, 18, 19], [], False),  # all are complete: another round changes nothing
        ([17, 18, 19, 20], [20], False),
        ([9, 20], [9], True),
        ([9, 20], [20], False),
    ],
)
def test_a_step_goes_on_while_it_would_leave_more_groups_than_have_a_place(left, unfinished, more):
    carries = Carries(2, (0, 10, 20))
    assert carries.are_too_many(np.array(left), np.array(unfinished, np.int64), 2) == more
