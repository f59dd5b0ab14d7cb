"""A model's tokenizer from its files, as far as prompts need it: neither transformers nor torch is imported for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer

from rljob_worker.errors import InvalidJob

OTHER_FORMATS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
"""Files that transformers converts a tokenizer from."""


class LightTokenizer:
    """What a `PromptEncoder` asks of a tokenizer of transformers."""

    def __init__(self, path: str, backend: Tokenizer, template: str | None, special: Mapping[str, str]) -> None:
        self.name_or_path, self.backend_tokenizer, self.chat_template = path, backend, template
        self._special = dict(special)

    def get_chat_template(self) -> str | None:
        return self.chat_template

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool, return_attention_mask: bool, verbose: bool
    ) -> dict[str, list[list[int]]]:
        encoded = self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [item.ids for item in encoded]}

    def apply_chat_template(
        self, messages: Any, *, tokenize: bool, add_generation_prompt: bool, **arguments: Any
    ) -> str:
        """As text. Raises jinja2.TemplateError, also where the template cannot be compiled."""
        result = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        return _compiled(self.chat_template or "").render(**self._special, **result, **arguments)


def light_tokenizer(path: str) -> LightTokenizer | None:
    """The tokenizer of a directory. None where only transformers can say, which converts other formats; InvalidJob
    where there is nothing, or it is damaged."""
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        if any(any(folder.glob(pattern)) for pattern in OTHER_FORMATS):
            return None
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "nothing"
        raise InvalidJob(
            f"no tokenizer can be loaded from {path}, which holds {there}; put tokenizer.json and "
            "tokenizer_config.json beside the weights"
        )
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidJob(f"{file} is not a tokenizer: {error}; fetch the model again") from error
    config = json_object(folder / "tokenizer_config.json")
    return LightTokenizer(path, backend, _template(folder, config), _special_tokens(config))


def json_object(file: Path) -> dict[str, Any]:
    """What a file holds; nothing where there is no file. Raises InvalidJob for anything else."""
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidJob(f"{file} cannot be read: {error}; fetch the model again") from error
    if not isinstance(result, dict):
        raise InvalidJob(f"{file} holds a {type(result).__name__} in place of settings; fetch the model again")
    return result


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    result = config.get("chat_template")
    if isinstance(result, list):
        result = next((item.get("template") for item in result if item.get("name") == "default"), None)
    return result if isinstance(result, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    result = {}
    for name, value in config.items():
        if name.endswith("_token") and isinstance(value, (str, dict)):
            result[name] = value if isinstance(value, str) else str(value.get("content", ""))
    return result


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """A chat template in the environment that transformers gives to templates. Compiling takes 50 times as long as
    rendering a prompt."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
