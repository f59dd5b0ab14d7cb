"""What a job on some data and a model begins with: columns, reward and sizes that were found by looking."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from rljob_api.loading.starter import SHIPPED_REWARDS, StarterInputs
from rljob_worker.data.prompts import PromptEncoder
from rljob_worker.data.source import names_within
from rljob_worker.errors import BadData
from rljob_worker.model_shapes import shape_at
from rljob_worker.rehearsal.inputs.first_rows import data_set_columns, first_rows
from rljob_worker.rehearsal.inputs.tokenizer import light_tokenizer
from rljob_worker.users_code.function import as_name

PROMPTS = ("prompt", "messages", "question", "problem", "instruction", "query", "input")
ANSWERS = ("answer", "solution", "final_answer", "ground_truth", "reference", "target", "label", "output", "response")
"""Names of columns, the likeliest first."""

MOST_PROMPTS, LEAST_TOKENS = 16, 64

_NUMBER = re.compile(r"\s*[-+]?\$?[\d,.]+%?\s*")


@dataclass(frozen=True, slots=True)
class NamedParts:
    """What nobody has to guess."""

    prompt: str | None = None
    """A column, as the next."""
    answer: str | None = None
    reward: str | None = None
    """A function of the user's own, as `module:function`; None for a shipped one that compares with the answers."""


def beginning_of(
    model: str, data: str, validation: str | None = None, named: NamedParts = NamedParts()
) -> StarterInputs:
    """The first version of a job for what is here; a model of the Hub is not looked at. Raises BadData, InvalidJob."""
    answer, reward, name = named.answer, named.reward, "correct"
    prompt = named.prompt or prompt_column_of(data)
    if reward is None:
        answer = answer or _chosen(data, ANSWERS, "answers", "--answer, or your own function with --reward")
        reward = SHIPPED_REWARDS + reward_for(first_rows(data, [answer], MOST_PROMPTS).values[answer])
    else:
        name = as_name(reward.rpartition(":")[2])
        if answer is not None:
            first_rows(data, [answer], 1)  # is it there?
    return sized(
        StarterInputs(model, data, validation, prompt, answer, reward, reward_name=name, applies_template=False)
    )


def prompt_column_of(data: str) -> str:
    """The column that looks like prompts. Raises BadData where none does."""
    return _chosen(data, PROMPTS, "prompts", "--prompt")


def sized(begun: StarterInputs) -> StarterInputs:
    """`begun` with sizes that go with its data and its model; a model of the Hub is not looked at. Raises BadData."""
    rows = first_rows(begun.train, [begun.prompt_column], MOST_PROMPTS)
    prompts = rows.values[begun.prompt_column]
    shape = shape_at(Path(begun.model))
    powers = takewhile(lambda power: 2**power <= min(rows.num_rows, MOST_PROMPTS), range(1, 9))
    positions = None if shape is None else shape.max_positions
    begun = replace(begun, batch_size=2 ** len(list(powers)), max_positions=positions)
    tokenizer = light_tokenizer(begun.model) if Path(begun.model).is_dir() else None
    is_text = isinstance(prompts[0], str)
    if tokenizer is None:
        return fitting(replace(begun, applies_template=is_text), longest=None)
    begun = replace(begun, applies_template=is_text and tokenizer.chat_template is not None)
    ids, _, _ = PromptEncoder(tokenizer, apply_chat_template=begun.applies_template).encode(
        prompts, lambda i: f"row {i + 1} of {begun.train}"
    )
    return fitting(begun, max(map(len, ids)))


def fitting(begun: StarterInputs, longest: int | None) -> StarterInputs:
    """`begun` with lengths that the model has positions for. longest: tokens of the longest prompt that was seen, for
    which there is room as long as any is left for a response; None where nobody counted."""
    limit, prompt, response = begun.max_positions, begun.max_prompt_tokens, begun.max_response_tokens
    if longest is not None:
        prompt = room_for(longest)
    if limit is not None and prompt + response > limit:
        half = limit // 2
        prompt = min(prompt, half if longest is None or longest >= limit else max(half, longest))
        response = min(response, limit - prompt)
    return replace(begun, max_prompt_tokens=prompt, max_response_tokens=response)


def reward_for(answers: Sequence[Any]) -> str:
    """The shipped reward that fits most answers."""

    def share(fits: Callable[[str], object]) -> float:
        return sum(bool(fits(str(answer))) for answer in answers) / len(answers)

    if share(lambda text: "####" in text) > 0.5:
        return "final_number"
    if share(lambda text: _NUMBER.fullmatch(text) or "\\" in text or "$" in text) > 0.5:
        return "math_answer"
    return "exact_match"


def room_for(tokens: int) -> int:
    """A power of two with room for half as many tokens again as the longest prompt that was seen."""
    room = LEAST_TOKENS
    while 2 * room < 3 * tokens:
        room *= 2
    return room


def _chosen(path: str, known: Sequence[str], what: str, option: str) -> str:
    """The likeliest column; within records where none of the columns is. option: by which one is named."""
    there = data_set_columns(path)
    by_name = {name.lower(): name for name in there}
    if not any(name in by_name for name in known):
        row = {name: values[0] for name, values in first_rows(path, there, 1).values.items()}
        by_name = {name.rpartition(".")[2].lower(): name for name in names_within(row)}
    result = next((by_name[name] for name in known if name in by_name), None)
    if result is None:
        raise BadData(
            f"none of the columns of {path} looks like {what}; it has {', '.join(there) or 'none'}, and of "
            f"{', '.join(known)} one is looked for: name one with {option}"
        )
    return result
