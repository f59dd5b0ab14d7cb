"""A generating model that is asked what a response is worth, and answers OpenAI's chat completions besides."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_api.catalogue.services import JudgeOptions
from rljob_worker.errors import InvalidJob
from rljob_worker.services.batches import map_in_batches
from rljob_worker.services.models.loading import Answer, load_model, on_device
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.requests import BadRequest, Row, fill_template, messages_of
from rljob_worker.services.rubric import reward_of_votes, verdict
from rljob_worker.services.texts import load_grading_tokenizer

CHAT = "/v1/chat/completions"


class ServedJudge:
    """Asks its model the rubric about each row, `votes` times."""

    def __init__(self, options: JudgeOptions, place: ModelPlacement = ON_CPU) -> None:
        self._options = options
        self._tokenizer = load_grading_tokenizer(options.tokenizer or options.path)
        if self._tokenizer.chat_template is None:
            raise InvalidJob(f"the tokenizer of {options.path!r} has no chat template, which a judge is asked by")
        self._model = load_model(AutoModelForCausalLM, options, place)

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """The mean of each row's votes, with `unparsed`, `disagreement` and `truncated`: 1 where the question was
        longer than maxTokens and lost its beginning."""
        options = self._options
        asked = [self._tokens([{"role": "user", "content": fill_template(options.rubric, row)}]) for row in rows]
        kept = [tokens[-options.max_tokens :] for tokens in asked]
        said = self._generated(kept, options.temperature, options.max_new_tokens, options.votes)
        answers: list[Answer] = []
        for tokens, texts in zip(asked, said, strict=True):
            votes = [verdict(text, options.mark, options.lowest, options.highest) for text in texts]
            truncated = float(len(tokens) > options.max_tokens)
            answers.append({**reward_of_votes(votes, options.unparsed), "truncated": truncated})
        return answers

    def answer(self, path: str, body: Any) -> Any:
        """A chat completion. Raises BadRequest."""
        if path != CHAT:
            raise BadRequest(f"a judge has no route {path}; it has {CHAT}")
        tokens = self._tokens(messages_of(body))
        if len(tokens) > self._options.max_tokens:
            raise BadRequest(f"the messages have {len(tokens)} tokens, more than maxTokens {self._options.max_tokens}")
        temperature = _number(body, "temperature", self._options.temperature)
        limit = _number(body, "max_tokens", self._options.max_new_tokens)
        count = _number(body, "n", 1)
        if temperature < 0 or limit < 1 or not 1 <= count <= 64:
            raise BadRequest("temperature is 0 or more, max_tokens 1 or more, and n from 1 to 64")
        (texts,) = self._generated([tokens], temperature, int(limit), int(count))
        return {
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._options.path,
            "choices": [
                {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for i, text in enumerate(texts)
            ],
        }

    def _tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """What the model reads before it answers."""
        template = self._tokenizer.apply_chat_template
        return list(template(list(messages), add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])

    def _generated(self, prompts: Sequence[list[int]], temperature: float, limit: int, count: int) -> list[list[str]]:
        """[prompts][count] texts."""
        # what is generated takes room too, in every one of `count` rows
        lengths = [(len(prompt) + limit) * count for prompt in prompts]

        def find(some: list[list[int]]) -> list[list[str]]:
            texts = self._batch(some, temperature, limit, count)
            return [texts[at : at + count] for at in range(0, len(texts), count)]

        return map_in_batches(prompts, lengths, self._options.batch_tokens, find)

    def _batch(self, prompts: Sequence[list[int]], temperature: float, limit: int, count: int) -> list[str]:
        sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
        pad = self._tokenizer.pad_token_id
        with torch.inference_mode():
            tokens = continued(self._model, prompts, pad, max_new_tokens=limit, num_return_sequences=count, **sampling)
        return list(self._tokenizer.batch_decode(tokens, skip_special_tokens=True))


def continued(model: Any, prompts: Sequence[list[int]], pad: int, **sampling: Any) -> Tensor:
    """What the model, wherever it lies, says after each prompt: [answers, tokens], padded, on the CPU. sampling: as
    `generate` of transformers has it."""
    longest = max(map(len, prompts))
    # on the left: what is generated continues the prompt's last token
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    inputs = on_device({"input_ids": ids, "attention_mask": mask}, model.device)
    output: Tensor = model.generate(**inputs, pad_token_id=pad, **sampling)
    return output[:, longest:].cpu()


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} is not a number")
    return value
