"""Tests of drawing a sample of mutants."""

from mutation.mutants import mutants_of
from mutation.sample import sample

TEXT = "".join(f"v{i} = w{i}\n" for i in range(100))
MUTANTS = mutants_of(TEXT)


def lines(mutants):
    return [mutant.line for mutant in mutants]


def test_a_seed_draws_the_same_mutants_again():
    drawn = sample(MUTANTS, 10, 1, ())
    assert len(drawn) == 10
    assert drawn == sample(MUTANTS, 10, 1, ())
    assert drawn != sample(MUTANTS, 10, 2, ())


def test_all_when_there_are_fewer():
    assert sample(MUTANTS, 1000, 1, ()) == MUTANTS


def test_changed_lines_come_first():
    undrawn = next(mutant for mutant in MUTANTS if mutant not in sample(MUTANTS, 10, 1, ()))
    drawn = sample(MUTANTS, 10, 1, {undrawn.line_number})
    assert undrawn in drawn
    assert len(set(drawn) - set(sample(MUTANTS, 10, 1, ()))) == 1


def test_a_new_line_leaves_the_choice_of_others_alone():
    drawn = lines(sample(MUTANTS, 10, 1, ()))
    longer = lines(sample(mutants_of("first = 0\n" + TEXT), 10, 1, ()))
    assert len(set(drawn) & set(longer)) >= 7  # the new line has three mutants


def test_few_or_many_share_their_first():
    assert set(sample(MUTANTS, 10, 1, ())) < set(sample(MUTANTS, 20, 1, ()))
