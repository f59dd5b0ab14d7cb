"""How often a model wins the guessing game: `python -m rljob_worker.tiny.conversations.exact_game MODEL` follows every
guess that it may make, sampled at temperature 1, over all numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from rljob_worker.tiny.conversations.guessing_game import NUMBERS, OPTIMAL, Answered, Success, messages, success

GAMES_AT_ONCE = 256


def exact_success(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, least: float = 1e-6) -> Success:
    """least: probability of a game so far below which it is not followed."""

    def chances(games: Sequence[Answered]) -> Sequence[Sequence[float]]:
        result: list[list[float]] = [[] for _ in games]
        prompts = [_prompt(tokenizer, game) for game in games]
        for length in sorted({len(prompt) for prompt in prompts}):  # without padding
            places = [at for at, prompt in enumerate(prompts) if len(prompt) == length]
            for first in range(0, len(places), GAMES_AT_ONCE):
                part = places[first : first + GAMES_AT_ONCE]
                values = guess_chances(model, tokenizer, torch.tensor([prompts[at] for at in part]))
                for at, of_game in zip(part, values.tolist(), strict=True):
                    result[at] = of_game
        return result

    return success(chances, least)


def _prompt(tokenizer: PreTrainedTokenizerFast, game: Answered) -> list[int]:
    text = tokenizer.apply_chat_template(list(messages(game)), tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def guess_chances(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Tensor) -> Tensor:
    """Probability of each of NUMBERS, and of nothing behind it, as what is said next: float32 [games, numbers].

    prompts: int64 [games, tokens].
    """
    digits = [tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    end = tokenizer.eos_token_id
    games, cache = len(prompts), None
    first, cache = _next(model, prompts, cache)
    result = torch.zeros(games, len(NUMBERS))
    for tens in range(1, 10):
        begun = deepcopy(cache)
        second, begun = _next(model, torch.full((games, 1), digits[tens]), begun)
        if tens in NUMBERS:
            result[:, tens - NUMBERS[0]] = first[:, digits[tens]] * second[:, end]
        for ones in (ones for ones in range(10) if 10 * tens + ones in NUMBERS):
            third, _ = _next(model, torch.full((games, 1), digits[ones]), deepcopy(begun))
            chance = first[:, digits[tens]] * second[:, digits[ones]] * third[:, end]
            result[:, 10 * tens + ones - NUMBERS[0]] = chance
    return result


def _next(model: Qwen3ForCausalLM, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """Probabilities of the token after these, [games, vocabulary], and keys and values of all before it."""
    with torch.inference_mode():
        output = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1].softmax(-1), output.past_key_values


def main(arguments: list[str]) -> None:
    """Prints the success of the model in a folder, as JSON."""
    (folder,) = arguments
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    result = exact_success(model, AutoTokenizer.from_pretrained(folder))
    of_optimal = result.probability / OPTIMAL
    print(json.dumps({"won": result.probability, "of_optimal": of_optimal, "not_followed": result.left_out}))


if __name__ == "__main__":
    main(sys.argv[1:])
