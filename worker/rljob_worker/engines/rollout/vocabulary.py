"""What the tokens of a tokenizer are in a response's text, as bytes: characters may be spread over several tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from rljob_worker.errors import InvalidJob

DecoderStep = dict[str, Any]
"""A part of a decoder, as tokenizer.json has it."""
_NO_TEXT = {"Fuse", "Strip"}
"""Steps of decoders that change no token: they put texts together, and take a blank from the beginning."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id."""

    token_bytes: tuple[bytes, ...]
    """UTF-8 of what each token adds to the text of a response; nothing for special tokens, which are not text."""
    special: Mapping[str, int]
    """Special tokens by their names."""

    @staticmethod
    def of(tokenizer: Any) -> Vocabulary:
        """Raises InvalidJob for a tokenizer whose tokens have no bytes of their own."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidJob(f"{type(tokenizer).__name__} is not a tokenizer with a tokenizer.json; {_FIX}")
        added = tokenizer.added_tokens_decoder
        special = {token.content: token_id for token_id, token in added.items() if token.special}
        steps = decoder_steps(backend)
        result = [b""] * len(tokenizer)
        for text, token_id in tokenizer.get_vocab().items():
            if token_id not in added or not added[token_id].special:
                result[token_id] = bytes_of(text, steps)
        return Vocabulary(tuple(result), special)


_FIX = "write rollout.stopTokenIds in place of rollout.stop"
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}


def decoder_steps(backend: Tokenizer) -> list[DecoderStep]:
    """What makes text of the tokens of a tokenizer. Raises InvalidJob for tokens that have no bytes of their own."""
    decoder = backend.decoder
    return list(_steps(None if decoder is None else json.loads(decoder.__getstate__())))


def _steps(decoder: DecoderStep | None) -> Iterator[DecoderStep]:
    """The parts of a decoder that make text of tokens, of those that are known."""
    kind = decoder and decoder["type"]
    if decoder is None or kind not in ("Sequence", "ByteLevel", "ByteFallback", "Metaspace", "Replace", *_NO_TEXT):
        raise InvalidJob(
            f"the tokenizer decodes by {kind or 'putting blanks'}, so its tokens are not pieces of a text; {_FIX}"
        )
    if kind == "Sequence":
        for item in decoder["decoders"]:
            yield from _steps(item)
    elif kind not in _NO_TEXT:
        yield decoder


def bytes_of(text: str, steps: Sequence[DecoderStep]) -> bytes:
    """UTF-8 of what a token adds to a text. text: as the vocabulary has it."""
    for step in steps:
        match step["type"]:
            case "ByteLevel" if all(letter in _BYTE_OF for letter in text):
                return bytes(_BYTE_OF[letter] for letter in text)
            case "ByteFallback" if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            case "Metaspace":
                text = text.replace(step["replacement"], " ")
            case "Replace" if "String" in step["pattern"]:
                text = text.replace(step["pattern"]["String"], step["content"])
    return text.encode()
