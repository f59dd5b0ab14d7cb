"""The tokenizer of the tiny model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rljob_worker.tiny.problems import dataset, split_problems
from rljob_worker.tiny.tokenizer import encode_answer, encode_prompt, train_tokenizer

ROWS = dataset(split_problems(0).train, 256, 0)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(text for row in ROWS for text in row.values())


def test_the_corpus_comes_back_as_it_was(tokenizer):
    for row in ROWS:
        for text in row.values():
            assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(alphabet=st.sampled_from([chr(code) for code in range(32, 127)] + ["\n"])))
def test_any_printable_text_comes_back_as_it_was(text):
    tokenizer = train_tokenizer(["Mia has 3 pens."])
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_digit_is_always_the_same_token(tokenizer):
    one, two = tokenizer.convert_tokens_to_ids(["1", "2"])
    assert tokenizer.encode("12") == [one, two]
    assert tokenizer.encode("#### 12")[-2:] == [one, two]
    assert tokenizer.encode("has 2 pens")[1] == two


def test_training_twice_gives_the_same_vocabulary(tokenizer):
    again = train_tokenizer(text for row in ROWS for text in row.values())
    assert again.get_vocab() == tokenizer.get_vocab()


def test_a_prompt_ends_where_the_assistant_begins_and_an_answer_ends_itself(tokenizer):
    prompt = tokenizer.decode(encode_prompt(tokenizer, "Mia has 3 pens."))
    assert prompt == "<|user|>Mia has 3 pens.<|assistant|>"
    assert encode_answer(tokenizer, "#### 3")[-1] == tokenizer.eos_token_id


def test_it_loads_with_its_chat_template(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    question = ROWS[0]["question"]
    assert encode_prompt(loaded, question) == encode_prompt(tokenizer, question)
    assert (loaded.pad_token, loaded.bos_token, loaded.eos_token) == ("<|pad|>", "<|bos|>", "<|end|>")
