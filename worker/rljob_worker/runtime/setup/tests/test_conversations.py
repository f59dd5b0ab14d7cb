"""What a job's spec and tokenizer say of its conversations."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.runtime.setup.conversations import bounds_of


def test_a_conversation_has_tokens_of_its_tokenizer_added_ones_included():
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0, "<added>": 7, "b": 1})
    bounds = bounds_of(make_plan("rollout.conversation={maxTurns: 2, maxTokens: 30}").spec, tokenizer)
    assert (bounds.turns, bounds.response_tokens, bounds.num_tokens, bounds.sees) == (2, 30, 8, False)
    assert bounds_of(make_plan("rollout.conversation={pictures: true}").spec, tokenizer).sees
    assert bounds.most_top_log_probs == 20
    server = "{routes: SGLang, urls: ['http://server:1'], weightsDirectory: /weights}"
    http = make_plan("rollout.conversation={}", "rollout.engine=HTTP", f"rollout.server={server}").spec
    assert bounds_of(http, tokenizer).most_top_log_probs == 0
    with pytest.raises(ValueError, match="the model has tokens from 0 to 7"):
        bounds.require_known(np.array([7, 8]))
