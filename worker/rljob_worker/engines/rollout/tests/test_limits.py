"""What is refused before an engine is asked for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_worker.batch import Column
from rljob_worker.engines.rollout.limits import Limits, require_possible
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.stop_strings import StopTexts
from rljob_worker.engines.rollout.tests.malformed import MALFORMATIONS
from rljob_worker.engines.rollout.tests.subjects import LETTERS
from rljob_worker.errors import BadData, InvalidJob

LIMITS = Limits(vocabulary_size=96, longest_row=256, temperatures=ROLLOUT_ENGINES["Transformers"].temperatures)
GOOD = Requests(
    row_ids=np.array([7, 8, 9]),
    turns=np.array([0, 1, 2]),
    prompts=Column.ragged([[5, 95], [3]]),
    prompt_of=np.array([0, 0, 1]),
    max_tokens=np.array([254, 1, 255]),
    samplings=(Sampling(stop=("AB",), stop_token_ids=(95,), top_p=1e-3, top_k=10**9, seed=-(2**70)),),
)


def submit(requests: Requests, limits: Limits = LIMITS, running: tuple[int, ...] = ()) -> None:
    """As an engine begins to."""
    require_possible(requests, limits, running)
    StopTexts(LETTERS).of_requests(requests)


def test_good_requests_may_have_all_that_there_is() -> None:
    submit(GOOD, running=(6, 10))
    submit(replace(GOOD, max_tokens=np.array([10**6, 1, 1])), replace(LIMITS, longest_row=None))
    nothing = np.empty(0, np.int64)
    submit(Requests(nothing, nothing, Column.ragged([]), nothing, nothing, (Sampling(),)))


@pytest.mark.parametrize("name", MALFORMATIONS)
def test_what_is_malformed_is_refused_with_the_reason(name: str) -> None:
    kind, draw = MALFORMATIONS[name], np.random.default_rng(0)
    for _ in range(30):  # of each of its values
        with pytest.raises((BadData, InvalidJob), match=kind.words):
            submit(kind.spoil(GOOD, draw))


def test_a_row_has_one_request_at_a_time() -> None:
    with pytest.raises(BadData, match="row 9: it runs already"):
        submit(GOOD, running=(3, 8))


def test_the_first_row_that_is_refused_is_named_with_its_token() -> None:
    asked = replace(GOOD, prompts=Column.ragged([[5, 95], [3, 4, 97, 98]]))
    with pytest.raises(BadData, match="row 10: token 97 at place 2 of its prompt: .* 0 to 95"):
        submit(asked)


def test_a_prompt_that_nobody_continues_is_not_looked_at() -> None:
    submit(replace(GOOD, prompts=Column.ragged([[-1], [], [5, 95], [3]]), prompt_of=np.array([2, 2, 3])))


@pytest.mark.parametrize(
    ("temperature", "refused"), [(0.009, True), (0.01, False), (0, False), (2, False), (2.1, True)]
)
def test_vllm_has_temperatures_of_its_own(temperature: float, refused: bool) -> None:
    asked = replace(GOOD, samplings=(Sampling(temperature=temperature),))
    submit(asked)
    limits = replace(LIMITS, temperatures=ROLLOUT_ENGINES["VLLM"].temperatures)
    if refused:
        with pytest.raises(InvalidJob, match=r"row 8: temperature .* from 0.01 to 2; below, it would sample at 0.01"):
            submit(asked, limits)
    else:
        submit(asked, limits)


def test_an_engine_without_a_vocabulary_refuses_stop_texts() -> None:
    assert StopTexts(None).of(()) is None
    with pytest.raises(InvalidJob, match="this engine has no tokenizer"):
        StopTexts(None).of(("AB",))


def test_stop_texts_are_made_ready_once_and_forgotten_after_four_others() -> None:
    texts = StopTexts(LETTERS)
    first = texts.of(("AB",))
    assert texts.of(("AB",)) is first
    for letter in "CDEF":
        texts.of((letter,))
    assert texts.of(("AB",)) is not first
