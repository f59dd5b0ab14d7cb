"""Arithmetic problems in words."""

import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.tiny.corpus import CorpusMixture, texts
from rljob_worker.tiny.problems import MAX_RESULT, WordProblem, all_problems, dataset, split_problems

seeds = st.integers(0, 1000)


def test_a_worked_answer_shows_both_steps_and_the_result():
    # 3 boxes of 4 are 12; 12 and 5 more are 17.
    problem = WordProblem("*+", 3, 4, 5)
    assert problem.worked() == "3*4=12\n12+5=17\n#### 17"
    question = "Mia buys 3 boxes of 4 pens and finds 5 more. How many pens in all?"
    assert problem.question("Mia", "pens") == question


def test_a_counted_answer_has_a_line_for_each_factor():
    assert WordProblem("*-", 3, 4, 5).counted() == "1*4=4\n2*4=8\n3*4=12\n12-5=7\n#### 7"
    assert WordProblem("++", 3, 4, 5).counted() == "3+4=7\n7+5=12\n#### 12"


def test_every_problem_is_different_and_has_a_positive_result_that_python_agrees_with():
    problems = all_problems()
    assert len(problems) == len(set(problems)) > 1900
    for problem in problems:
        first, second = problem.operations
        # Evaluated left to right: * binds tighter than + and -, and comes first in every story.
        assert eval(f"{problem.a}{first}{problem.b}{second}{problem.c}") == problem.result
        assert 1 <= problem.result <= MAX_RESULT


@given(seeds)
@settings(max_examples=10)
def test_no_training_problem_is_held_out(seed):
    problems = split_problems(seed)
    assert len(problems.validation) == 256
    assert len(problems.train) + 256 == len(all_problems())
    assert not set(problems.train) & set(problems.validation)


def numbers_and_story(question: str) -> tuple[str, ...]:
    return (*re.findall(r"\d", question), re.sub(r"\d", "", question).split()[1])


@given(seeds)
@settings(max_examples=5)
def test_rows_are_a_function_of_the_seed_and_disjoint_whatever_words_dress_them(seed):
    problems = split_problems(seed)
    train, validation = dataset(problems.train, 2048, seed), dataset(problems.validation, 256, seed)
    assert train == dataset(problems.train, 2048, seed)
    assert len({row["question"] for row in train}) == 2048
    held_out = {numbers_and_story(row["question"]) for row in validation}
    assert not held_out & {numbers_and_story(row["question"]) for row in train}


def test_other_seeds_hold_out_other_problems():
    assert set(split_problems(0).validation) != set(split_problems(1).validation)


def test_every_answer_ends_in_the_result_of_its_last_step():
    for row in dataset(split_problems(3).train, 512, 3):
        first, second, last = row["answer"].split("\n")
        assert eval(first.replace("=", "=="))
        assert eval(second.replace("=", "=="))
        assert last == f"#### {second.split('=')[1]}"


def test_the_corpus_mixes_worked_solutions_with_guesses_that_are_mostly_wrong():
    problems = split_problems(0).train
    mixture = CorpusMixture(worked_share=0.3, max_error=2)
    sample = list(itertools.islice(texts(problems, mixture, seed=0), 4000))
    assert sample == list(itertools.islice(texts(problems, mixture, seed=0), 4000))
    worked = [answer for _, answer in sample if "=" in answer]
    # Standard deviation of the share is sqrt(0.3 * 0.7 / 4000) = 0.007.
    assert abs(len(worked) / len(sample) - 0.3) < 0.03
    assert all(eval(line.replace("=", "==")) for answer in worked for line in answer.split("\n")[:2])


def test_a_corpus_that_counts_up_differs_in_its_worked_solutions_alone():
    problems = split_problems(0).train
    short, long = (
        list(itertools.islice(texts(problems, CorpusMixture(counts_up=counts_up), seed=0), 500))
        for counts_up in (False, True)
    )
    assert [question for question, _ in short] == [question for question, _ in long]
    lines = {(answer.count("\n"), other.count("\n")) for (_, answer), (_, other) in zip(short, long, strict=True)}
    # guesses, sums, and products of 2 to 9: a line more for each factor before the last
    assert lines == {(0, 0), *((2, 2 + more) for more in range(9 - 1 + 1))}
