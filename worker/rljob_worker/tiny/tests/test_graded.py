import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.tiny.decoding import stated_result
from rljob_worker.tiny.graded import false_answer, pairs, true_answer
from rljob_worker.tiny.problems import all_problems

PROBLEMS = tuple(all_problems())


@given(st.sampled_from(PROBLEMS), st.integers())
def test_a_true_answer_states_the_result_and_a_false_one_does_not(problem, seed):
    rng = random.Random(seed)
    assert stated_result(true_answer(problem, rng)) == str(problem.result)
    assert stated_result(false_answer(problem, rng)) != str(problem.result)


def test_pairs_are_the_same_for_the_same_seed_and_false_in_many_ways():
    first, again, other = (list(itertools.islice(pairs(PROBLEMS[:50], seed), 200)) for seed in (0, 0, 1))
    assert first == again != other
    # guesses, worked answers and the working alone
    kinds = {(answer.count("\n"), "####" in answer) for _, _, answer in first}
    assert kinds == {(0, True), (2, True), (1, False)}
