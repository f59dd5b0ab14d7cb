"""The corpus that the tiny model is trained on."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.tiny.corpus import good_answer, pairs, poor_answer
from rljob_worker.tiny.model import stated_result
from rljob_worker.tiny.problems import all_problems

PROBLEMS = tuple(all_problems())


@given(st.sampled_from(PROBLEMS), st.integers())
def test_a_good_answer_works_out_the_result_and_a_poor_one_states_another_or_works_out_nothing(problem, seed):
    assert stated_result(good_answer(problem)) == str(problem.result) and "=" in good_answer(problem)
    poor = poor_answer(problem, random.Random(seed))
    assert stated_result(poor) != str(problem.result) or "=" not in poor


def test_pairs_are_the_same_for_the_same_seed_and_poor_in_many_ways():
    first, again, other = (list(itertools.islice(pairs(PROBLEMS[:50], seed), 200)) for seed in (0, 0, 1))
    assert first == again != other
    # bare numbers, worked answers and the steps alone
    kinds = {(answer.count("\n"), "####" in answer) for _, _, answer in first}
    assert kinds == {(0, True), (2, True), (1, False)}
