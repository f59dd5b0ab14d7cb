"""Does an engine compute with the weights that it was given last?

Reloading in place is silently wrong where `weights` does not help it: of a mixture of experts on the CPU, log-probs
moved by 5; of tied embeddings the last layer kept the old ones. So an engine starts with random
weights, gets the policy as every later one, and must then agree with transformers, or it is refused.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.attention.varlen import PackedLayout
from rljob_worker.engines.log_probs.token_log_probs import token_log_probs
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.errors import InvalidJob

_PROMPT, _RESPONSE = 8, 16
_MAY_DIFFER = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference of log-probs in each precision: rounding is ten times less, old weights ten times more."""


def require_faithful(engine: RolloutEngine, model: PreTrainedModel, dtype: str, longest_row: int) -> None:
    """Compare the log-probs of one greedy response with the model's, whose weights the engine was given. Raises
    InvalidJob."""
    num_prompt = min(_PROMPT, longest_row // 2)
    prompt = np.random.default_rng(0).integers(model.config.vocab_size, size=num_prompt)
    engine.submit(_probe(prompt, min(_RESPONSE, longest_row - num_prompt)))
    ended = engine.advance()
    expected = _log_probs(model, prompt, ended.response_ids.values)
    difference = float(np.abs(ended.log_probs.values - expected).mean())
    if not difference <= _MAY_DIFFER[dtype]:
        raise InvalidJob(
            f"vLLM does not compute {type(model).__name__} with the weights that it was given: log-probs of a probe "
            f"differ by {difference:.3g} from those of transformers, where {_MAY_DIFFER[dtype]:.3g} are "
            "rounding; write rollout.engine: Transformers"
        )


def _probe(prompt: Indices, max_tokens: int) -> Requests:
    return Requests(
        row_ids=np.zeros(1, np.int64),
        turns=np.zeros(1, np.int64),
        prompts=Column.ragged([prompt]),
        prompt_of=np.zeros(1, np.int64),
        max_tokens=np.array([max_tokens]),
        samplings=(Sampling(temperature=0),),
    )


def _log_probs(model: PreTrainedModel, prompt: Indices, response: Indices) -> np.ndarray:
    """float32 [response]."""
    tokens = torch.from_numpy(np.concatenate([prompt, response]))
    positions = np.arange(len(tokens))
    with torch.inference_mode():
        logits = model(
            input_ids=tokens.to(model.device)[None],
            position_ids=torch.from_numpy(positions).to(model.device)[None],
            use_cache=False,
            attention_layout=PackedLayout.build(positions, np.array([len(tokens)]), len(tokens), model.device),
        ).logits[0]
        targets = tokens[len(prompt) :].to(model.device)
        log_probs, _ = token_log_probs(logits[len(prompt) - 1 : -1], targets, 1.0)
    on_host: np.ndarray = log_probs.float().cpu().numpy()
    return on_host
