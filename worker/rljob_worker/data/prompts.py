"""From a prompt in the data, a text or chat messages, to the text and the token ids that the model continues."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta
import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import BadData, InvalidJob, WrongField
from rljob_worker.vision.picture_tokens import PicturePlaces
from rljob_worker.vision.pictures import BadPicture
from rljob_worker.vision.processing import PictureProcessor, PictureShape

TokenIds = NDArray[np.int64]
Messages = list[dict[str, Any]]
Where = Callable[[int], str]
"""How a message names the i-th prompt of a list: `row 3 of data/train.parquet`."""


class PromptEncoder:
    """Renders and tokenizes prompts the way the job asks for.

    A text is used as it is, special tokens at its start as the tokenizer sets them; with `apply_chat_template` it is
    one user message. Messages go through the model's chat template, the generation prompt added.

    template_arguments: what the chat template is given besides. Raises InvalidJob for one that it does not read.
    pictures: of a model that sees; without it a prompt has no pictures, and `<image>` in it is text.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        apply_chat_template: bool = False,
        system_prompt: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        pictures: PictureProcessor | None = None,
    ) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures
        self._places = None
        if pictures is not None:
            shows_videos = pictures.videos is not None
            self._places = PicturePlaces(tokenizer, pictures.tokens, shows_videos=shows_videos)
        self._wraps_text = apply_chat_template
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self._arguments = dict(template_arguments or {})
        if apply_chat_template:
            self._require_template("data.applyChatTemplate is set")
        if self._arguments:
            self._require_template("models.chatTemplate is set")
            require_arguments(self._tokenizer.get_chat_template(), self._arguments)

    @property
    def identity(self) -> str:
        """Equal only where equal prompts give equal token ids."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        words = backend.to_str() if backend is not None else repr(self._tokenizer)
        parts = [words, self._tokenizer.chat_template, self._wraps_text, self._system, sorted(self._arguments.items())]
        parts += (
            []
            if self._pictures is None
            else [
                self._pictures.tokens,
                self._pictures.rule,
                self._pictures.budget,
                self._pictures.videos,
            ]
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def encode(
        self, prompts: Sequence[Any], where: Where, pictures: Sequence[Sequence[bytes]] | None = None
    ) -> tuple[list[TokenIds], list[str], list[list[bytes]]]:
        """Token ids and texts of prompts, and what each shows in the order of its tokens. pictures: of each prompt,
        encoded pictures and videos, of each kind in order; their places have as many tokens as the model sees of them.
        Raises BadData naming the row, InvalidJob when the model has no template."""
        texts = [self._text(prompt, where, i) for i, prompt in enumerate(prompts)]
        shapes = [self._shapes(row, where(i)) for i, row in enumerate(pictures or [()] * len(texts))]
        if self._places is not None and pictures is not None:
            texts = [self._places.with_times(text, _videos(shapes[i]), where(i)) for i, text in enumerate(texts)]
        ids: list[TokenIds] = [np.empty(0, np.int64)] * len(texts)
        for bare in (True, False):
            chosen = [i for i, prompt in enumerate(prompts) if self._is_bare(prompt) == bare]
            for i, result in zip(chosen, self._tokenize([texts[i] for i in chosen], bare), strict=True):
                ids[i] = np.asarray(result, np.int64)
        for i, tokens in enumerate(ids):
            if not len(tokens) or not texts[i].strip():
                raise BadData(f"{where(i)}: the prompt is empty")
        if self._places is None or pictures is None:
            return ids, texts, [[] for _ in texts]
        ids = [self._expanded(tokens, shapes[i], where(i)) for i, tokens in enumerate(ids)]
        items = [list(zip(row, shapes[i], strict=True)) for i, row in enumerate(pictures)]
        return ids, texts, [self._places.in_order(tokens, items[i]) for i, tokens in enumerate(ids)]

    def _shapes(self, pictures: Sequence[bytes], where: str) -> list[PictureShape]:
        if self._pictures is None:
            return []
        try:
            return [self._pictures.shape(encoded) for encoded in pictures]
        except BadPicture as error:
            raise BadData(f"{where}: {error}") from error

    def _expanded(self, tokens: TokenIds, shapes: Sequence[PictureShape], where: str) -> TokenIds:
        assert self._places is not None, "the model sees"
        num_tokens = [shape.num_tokens for shape in shapes if shape.video is None]
        return self._places.expand_videos(self._places.expand(tokens, num_tokens, where), _videos(shapes), where)

    def messages(self, prompt: Any) -> Messages:
        """A prompt that `encode` took, as chat messages: a text is one of the user."""
        if isinstance(prompt, str):
            return [*self._system, {"role": "user", "content": prompt}]
        return [*self._system, *({key: value for key, value in item.items() if value is not None} for item in prompt)]

    def _is_bare(self, prompt: Any) -> bool:
        """Whether the tokenizer adds its special tokens; a chat template writes its own."""
        return isinstance(prompt, str) and not self._wraps_text

    def _tokenize(self, texts: list[str], bare: bool) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(texts, add_special_tokens=bare, return_attention_mask=False, verbose=False)
        return list(encoded["input_ids"])

    def _text(self, prompt: Any, where: Where, i: int) -> str:
        if self._is_bare(prompt):
            for field in ["data.systemPrompt"] * bool(self._system) + ["models.chatTemplate"] * bool(self._arguments):
                raise WrongField(f"{field} needs chat messages or applyChatTemplate: true; {where(i)} is a text", field)
            return str(prompt) if self._places is None else self._places.in_text(prompt)
        if isinstance(prompt, str):
            content = prompt if self._places is None else self._places.in_text(prompt)
            return self._render([*self._system, {"role": "user", "content": content}], where, i)
        return self._render(self._checked(prompt, where, i), where, i)

    def _checked(self, prompt: Any, where: Where, i: int) -> Messages:
        if not isinstance(prompt, list) or not prompt or not all(isinstance(message, dict) for message in prompt):
            raise BadData(f"{where(i)}: the prompt is {_described(prompt)}, not a text or a list of chat messages")
        messages = [{k: v for k, v in message.items() if v is not None} for message in prompt]
        for message in messages:
            if self._places is not None:
                message["content"] = self._places.in_content(message.get("content"), where(i))
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    has_parts = key == "content" and isinstance(message.get(key), list) and self._places is None
                    fix = "; data.imagesColumn lets messages have parts" if has_parts else ""
                    raise BadData(
                        f"{where(i)}: a chat message needs {key!r} as text, and has {_described(message.get(key))}{fix}"
                    )
        if self._system and messages[0]["role"] == "system":
            raise WrongField(
                f"data.systemPrompt is set and {where(i)} begins with a system message; remove one of them",
                "data.systemPrompt",
            )
        return [*self._system, *messages]

    def _render(self, messages: Messages, where: Where, i: int) -> str:
        self._require_template(f"{where(i)} holds chat messages")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **self._arguments
                )
            )
        except jinja2.TemplateError as error:
            raise BadData(f"{where(i)}: the model's chat template refuses the messages: {error}") from error

    def _require_template(self, why: str) -> None:
        if self._tokenizer.chat_template is None:
            raise InvalidJob(
                f"{why}, but the model at {self._tokenizer.name_or_path!r} has no chat template: use text prompts "
                "without applyChatTemplate, take an instruction-tuned model, or put a chat_template.jinja into the "
                "model's directory"
            )


def _videos(shapes: Sequence[PictureShape]) -> list[PictureShape]:
    return [shape for shape in shapes if shape.video is not None]


def require_arguments(template: str, arguments: Mapping[str, Any]) -> None:
    """Raises InvalidJob for an argument that a chat template never reads, which would change nothing."""
    # the block in which templates mark what an assistant said is an extension of transformers
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    read = jinja2.meta.find_undeclared_variables(environment.parse(plain)) - _GIVEN - set(environment.globals)
    for name in sorted(set(arguments) - read):
        raise WrongField(
            f"models.chatTemplate.{name} is never read by the model's chat template; it reads "
            f"{', '.join(sorted(read)) or 'no argument'}",
            f"models.chatTemplate.{name}",
        )


_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
"""What every chat template has, besides the tokenizer's special tokens."""


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        inner = f" of {type(value[0]).__name__}" if value else ""
        return f"{'a' if value else 'an empty'} list{inner}"
    return f"a {type(value).__name__}"
