"""Stop texts in tokens, held against decoding the whole response after every token."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rljob_worker.engines.rollout.stop_strings import StopStrings
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import InvalidJob

TEXTS = ["the answer is 42</answer>\n\n", "答案是四十二。", "naïve 🙂🙃 end", "aaab ab aab", "the end\n the end"]


@cache
def byte_level() -> Any:
    """As Qwen, Llama 3 and GPT-2 have it: every byte is a token, and merges may cross the bytes of characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)


@cache
def sentence_pieces() -> Any:
    """As Llama 2 and Gemma have it: blanks are a letter of their own, what is not a piece is spelt in bytes."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "ab",
        "answer",
        ">",
    ]
    model = models.BPE(
        {word: i for i, word in enumerate(words)}, [("▁", "a"), ("a", "b")], byte_fallback=True, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def end_of(stops: StopStrings, tokens: np.ndarray) -> int:
    """How many tokens a response has when it ends; -1 when it does not."""
    for number in range(1, len(tokens) + 1):
        if stops.may_end(tokens[number - 1 : number])[0] and stops.have_ended(tokens[:number]):
            return number
    return -1


def end_by_decoding(tokenizer: Any, texts: list[str], tokens: np.ndarray) -> int:
    for number in range(1, len(tokens) + 1):
        decoded = tokenizer.decode(tokens[:number], skip_special_tokens=True)
        if any(decoded.find(text) >= 0 for text in texts):
            return number
    return -1


class Looked(list[int]):
    """Tokens, and which of them were looked at."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(tokens)
        self.looked_at: set[int] = set()

    def __getitem__(self, at: Any) -> Any:
        self.looked_at.add(at)
        return super().__getitem__(at)


letters = st.sampled_from(list("abe <>/\nn答🙂ï4"))
stop_texts = st.lists(st.text(letters, min_size=1, max_size=6), min_size=1, max_size=3)


@given(stop_texts, st.lists(st.integers(0, len(byte_level()) - 1), max_size=40))
def test_a_response_of_any_tokens_ends_where_its_decoded_text_has_a_stop(texts: list[str], ids: list[int]) -> None:
    stops, tokens = StopStrings(texts, Vocabulary.of(byte_level())), np.array(ids, np.int64)
    assert end_of(stops, tokens) == end_by_decoding(byte_level(), texts, tokens)


@given(stop_texts, st.text(letters, max_size=30), st.sampled_from([byte_level, sentence_pieces]), st.randoms())
def test_a_text_ends_where_it_has_a_stop_whatever_its_tokens(
    texts: list[str], text: str, make: Any, chance: Any
) -> None:
    tokenizer = make()
    if make is sentence_pieces:
        texts, text = [text.replace(" ", "") or "a" for text in texts], text.replace(" ", "")
    cuts = sorted(chance.sample(range(len(text) + 1), min(3, len(text))))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    special = tokenizer.eos_token_id
    tokens = np.array(
        [i for part in parts for i in [*tokenizer.encode(part, add_special_tokens=False), special]], np.int64
    )
    stops = StopStrings(texts, Vocabulary.of(tokenizer))
    assert end_of(stops, tokens) == end_by_decoding(tokenizer, texts, tokens)
    # the last token of the first stop is where the text is first long enough to hold it
    ends = [text.find(item) + len(item) for item in texts if item in text]
    assert (end_of(stops, tokens) > 0) == bool(ends)


def test_a_character_of_three_bytes_over_three_tokens() -> None:
    # 答 is E7 AD 94; the tokens of single bytes are called by the letters of GPT-2's alphabet for them
    tokenizer = byte_level()
    first, second, third = tokenizer.convert_tokens_to_ids(["ç", "Ń", "Ķ"])
    stops = StopStrings(["答"], Vocabulary.of(tokenizer))
    assert stops.may_end(np.array([first, second, third])).tolist() == [False, False, True]
    assert stops.have_ended(np.array([first, second, third]))
    assert not stops.have_ended(np.array([first, first, third])) and not stops.have_ended(np.array([third]))


def test_only_the_last_token_ends_a_response_and_only_what_a_stop_is_long_is_looked_at() -> None:
    tokenizer = byte_level()
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    stops = StopStrings(["ab"], Vocabulary.of(tokenizer))
    assert stops.have_ended(np.array([a, b])) and not stops.have_ended(np.array([a, b, a]))
    several = StopStrings(["ab", "bbbb"], Vocabulary.of(tokenizer))
    assert several.have_ended(np.array([a, b])) and not several.have_ended(np.array([a, b, a]))

    response = Looked([a] * 1000 + [b])
    assert stops.have_ended(response) and response.looked_at == {-1, 999}


def test_a_token_that_the_tokenizer_does_not_have_is_no_text() -> None:
    # models have more rows of embeddings than tokens
    tokenizer = byte_level()
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    stops = StopStrings(["ab"], Vocabulary.of(tokenizer))
    assert not stops.may_end(np.array([100_000])).any()
    assert stops.have_ended(np.array([a, 100_000, b]))


def test_added_tokens_are_text_and_special_ones_are_not() -> None:
    vocabulary = Vocabulary.of(byte_level())
    think, end = byte_level().convert_tokens_to_ids(["<think>", "<|end|>"])
    assert (vocabulary.token_bytes[think], vocabulary.token_bytes[end]) == (b"<think>", b"")
    assert vocabulary.special == {"<|end|>": end}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty text would end every response at once"),
        ("</s>", "'</s>': this is a special token, which is not text in a response; write stopTokenIds: [2]"),
        ("wer b", "'wer b': no tokens of the model's tokenizer make this text"),
        ("b>c", "'b>c': no tokens"),
    ],
)
def test_a_text_that_no_response_can_contain_is_refused(text: str, words: str) -> None:
    whole = Vocabulary.of(sentence_pieces())
    # without bytes: blanks only before an a
    tokens = tuple(piece if at < 3 or at > 259 else b"" for at, piece in enumerate(whole.token_bytes))
    with pytest.raises(InvalidJob) as refused:
        StopStrings(["ab", text], Vocabulary(tokens, whole.special))
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["wer ab>", " a", "a a a", "swer>answer", "nswe"])
def test_a_text_that_begins_and_ends_inside_tokens_may_be_made(text: str) -> None:
    whole = Vocabulary.of(sentence_pieces())
    tokens = tuple(piece if at < 3 or at > 259 else b"" for at, piece in enumerate(whole.token_bytes))
    assert StopStrings([text], Vocabulary(tokens, whole.special))


def test_tokens_that_are_no_pieces_of_a_text_are_refused() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(InvalidJob, match=r"decodes by putting blanks.*stopTokenIds in place of rollout\.stop"):
        Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=backend))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InvalidJob, match="decodes by WordPiece"):
        Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=backend))
    with pytest.raises(InvalidJob, match="object is not a tokenizer with a tokenizer.json"):
        Vocabulary.of(object())


def test_the_blank_of_another_alphabet() -> None:
    state = json.loads(sentence_pieces().backend_tokenizer.to_str())
    state["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), unk_token="<unk>")
    assert Vocabulary.of(tokenizer).token_bytes[tokenizer.convert_tokens_to_ids("▁a")] == b" a"
