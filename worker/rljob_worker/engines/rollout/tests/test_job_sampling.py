"""From the fields of a job to how tokens are drawn."""

from __future__ import annotations

import numpy as np

from rljob_api.tests.builders import GRPO, dag, make_job
from rljob_worker.engines.rollout.job_sampling import max_tokens_of, training_sampling, validation_sampling
from rljob_worker.engines.rollout.requests import Sampling

STOPS = ("rollout.stop=[a, b]", "rollout.stopTokenIds=[0, 3]")


def test_training_draws_from_everything_and_validation_as_it_says() -> None:
    drawn = "validation={temperature: 0.6, topP: 0.95, topK: 20, minP: 0.1}"
    spec = make_job("seed=7", "rollout.temperature=0.5", drawn, *STOPS).spec
    assert training_sampling(spec, "actor") == Sampling(0.5, seed=7, stop=("a", "b"), stop_token_ids=(0, 3))
    # another stream of random numbers than training's
    assert validation_sampling(spec, "actor") == Sampling(0.6, 0.95, 20, 0.1, 7 + 2**32, ("a", "b"), (0, 3))


def test_policies_draw_from_streams_of_their_own() -> None:
    models = "models=[{name: actor, path: a}, {name: second, path: a}]"
    second = "name: second, run: UpdatePolicy, models: [second], after: [advantage, reference]"
    spec = make_job(models, "models.2={name: reference, path: a}", dag(*GRPO, second), "seed=7").spec
    seeds = [draw(spec, policy).seed for policy in spec.policies for draw in (training_sampling, validation_sampling)]
    assert seeds == [7, 7 + 2**32, 7 + 2**33, 7 + 2**33 + 2**32]


def test_a_response_has_what_the_prompt_leaves_of_the_sequence() -> None:
    lengths = np.array([1, 60, 100])
    free = make_job("data.maxPromptTokens=100", "rollout.maxResponseTokens=50").spec
    assert max_tokens_of(free, lengths).tolist() == [50, 50, 50]
    bound = make_job("data.maxPromptTokens=100", "rollout={maxResponseTokens: 50, maxSequenceTokens: 101}").spec
    assert max_tokens_of(bound, lengths).tolist() == [50, 41, 1]
