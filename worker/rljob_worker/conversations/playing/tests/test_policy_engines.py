"""Several engines as one: each decodes the rows of the agents that its policy plays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rljob_worker.batch import Column
from rljob_worker.conversations.playing.policy_engines import STEPS_IN_TURN, PolicyEngines, joined
from rljob_worker.conversations.playing.tests.playing import SAMPLING, SteppingEngine, ids, text
from rljob_worker.engines.rollout.requests import Requests, TopLogProbs

ROWS = 2
"""Of each of three agents, of which the second has an engine of its own."""


def engines():
    said = [SteppingEngine(lambda row, turn, before, name=name: f"{name}{before}~") for name in "AB"]
    return said, PolicyEngines(said, np.array([0, 1, 0]), ROWS)


def requests(*asked):
    """asked: (row_id, entry of the prompts `p`, `q` and `r`)."""
    row_ids, prompt_of = (np.array(values, np.int64) for values in zip(*asked, strict=True))
    most = np.full(len(asked), 9, np.int64)
    prompts = Column.ragged([ids(letter) for letter in "pqr"])
    return Requests(row_ids, np.zeros(len(asked), np.int64), prompts, prompt_of, most, (SAMPLING,))


def all_ended(together):
    """What is said in each row, until nothing runs."""
    said = {}
    while together.load.running:
        ended = together.advance()
        said |= {
            row: text(tokens) for row, tokens in zip(ended.row_ids.tolist(), ended.response_ids.to_list(), strict=True)
        }
    return said


def test_rows_go_to_the_engine_of_their_agent_with_the_prompts_that_they_have():
    (one, other), together = engines()
    # rows 0, 1 and 6 are the first agent's, 4 and 5 the third's, 2, 3, 8 and 9 the second's
    together.submit(requests((0, 0), (2, 0), (4, 1), (9, 1), (8, 2)))
    assert [engine.load.running for engine in (one, other)] == [2, 3] and together.load.running == 5
    assert [engine.submitted[0].prompt_of.tolist() for engine in (one, other)] == [[0, 1], [0, 1, 2]]
    assert all_ended(together) == {0: "Ap~", 4: "Aq~", 2: "Bp~", 9: "Bq~", 8: "Br~"}


def test_rows_keep_how_they_are_drawn_and_the_likely_tokens_that_they_asked_for():
    (one, other), together = engines()
    asked = requests((0, 0), (2, 0), (4, 1))
    ways = (SAMPLING, replace(SAMPLING, top_log_probs=2))
    together.submit(replace(asked, samplings=ways, sampling_of=np.array([1, 0, 1])))
    assert [engine.submitted[0].sampling_of.tolist() for engine in (one, other)] == [[1, 1], [0]]
    top = TopLogProbs(np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32))
    parts = [replace(engine.advance(), top_log_probs={row: top}) for engine, row in ((one, 4), (other, 2))]
    assert joined(parts).top_log_probs == {4: top, 2: top}


def test_rows_keep_their_pictures_states_and_draws():
    (one, other), together = engines()
    pictures = Column.ragged([ids(shown) for shown in ("p!", "q", "")])
    states = Column.ragged([np.full(2, number, np.float32) for number in range(3)])
    asked = requests((0, 0), (2, 1), (4, 2))
    together.submit(replace(asked, pictures=pictures, states=states, next_draws=np.array([5, 6, 7])))
    first, second = one.submitted[0], other.submitted[0]
    assert [text(item) for item in first.pictures.to_list()] == ["p!", ""]
    assert [text(item) for item in second.pictures.to_list()] == ["q"]
    assert [item.tolist() for item in first.states.to_list()] == [[0, 0], [2, 2]]
    assert (first.next_draws.tolist(), second.next_draws.tolist()) == ([5, 7], [6])


def test_an_engine_without_rows_is_left_alone():
    (one, other), together = engines()
    together.submit(requests((2, 1), (3, 1)))
    assert not one.submitted and other.submitted[0].prompts.to_list()[0].tolist() == ids("q").tolist()
    assert all_ended(together) == {2: "Bq~", 3: "Bq~"} and one.num_steps == 0
    assert len(together.advance()) == 0, "nothing runs, and nothing ends"


def test_engines_are_woken_held_and_aborted_by_the_rows_that_they_have():
    (one, other), together = engines()
    together.submit(requests((0, 0), (2, 0), (4, 1)))
    together.hold(np.array([0, 3, 4]))
    assert (one.held, other.held) == ({0, 4}, {3})
    together.release(np.array([0, 3]))
    assert (one.held, other.held) == ({4}, set())
    assert len(together.abort(np.array([2, 4]))) == 0 and (one.aborted, other.aborted) == ([4], [2])
    assert len(together.abort(np.empty(0, np.int64))) == 0
    assert all_ended(together) == {0: "Ap~"}


class Patient(SteppingEngine):
    """Notes how many steps it is given."""

    def __init__(self, answer):
        super().__init__(answer)
        self.given = []

    def advance(self, most_steps=None):
        self.given.append(most_steps)
        return super().advance(most_steps)


@pytest.mark.parametrize(("most", "expected"), [(None, STEPS_IN_TURN), (3, 3), (100, STEPS_IN_TURN)])
def test_engines_that_both_have_something_to_do_decode_in_turn(most, expected):
    both = [Patient(lambda *_: "xxxx~"), Patient(lambda *_: "xxxx~")]
    together = PolicyEngines(both, np.array([0, 1]), 1)
    together.submit(requests((0, 0), (1, 0)))
    together.advance(most)
    assert [engine.given for engine in both] == [[expected], [expected]]
    alone = [Patient(lambda *_: "xxxx~"), Patient(lambda *_: "xxxx~")]
    together = PolicyEngines(alone, np.array([0, 1]), 1)
    together.submit(requests((1, 0)))
    together.advance(most)
    assert [engine.given for engine in alone] == [[], [most]], "who is alone waits for nobody"
