"""What a model that grades reads of a row; a word of these tokenizers is one character."""

import pytest

from rljob_worker.services.texts import Text, graded_texts

ROW = {"prompt": "ab", "response": "cd", "level": "x"}


class Characters:
    """Writes `<` before what is asked and `>` before what is answered; begins texts with `^` unless asked not to."""

    pad_token_id = ord("_")

    def __init__(self, chat_template=None):
        self.chat_template, self.arguments = chat_template, []

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(item) for item in ("^" if add_special_tokens else "") + text]}

    def apply_chat_template(self, messages, tokenize, return_dict, **arguments):
        assert tokenize and return_dict
        self.arguments.append(arguments)
        marks = {"user": "<", "assistant": ">"}
        text = "".join(marks[message["role"]] + message["content"] for message in messages)
        return self(text, add_special_tokens=False)


def read(tokenizer, *rows, template=None, max_tokens=100, arguments=None):
    texts = graded_texts(tokenizer, rows or (ROW,), template, max_tokens, arguments)
    return [("".join(map(chr, text.tokens)), text.is_truncated) for text in texts]


@pytest.mark.parametrize(
    ("tokenizer", "template", "text"),
    [
        (Characters("its own"), None, "<ab>cd"),
        (Characters(), None, "^abcd"),
        # a template says everything, so that nothing is put before it
        (Characters("its own"), "{level}:{response}{other}", "x:cd{other}"),
        (Characters(), "{level}:{response}{other}", "x:cd{other}"),
    ],
)
def test_a_text_is_written_by_the_jobs_template_or_the_chat_template_or_as_it_comes(tokenizer, template, text):
    assert read(tokenizer, template=template) == [(text, False)]


def test_arguments_are_the_chat_templates():
    tokenizer = Characters("its own")
    read(tokenizer, arguments={"style": "plain"})
    read(tokenizer)
    assert tokenizer.arguments == [{"style": "plain"}, {}]


def test_what_is_too_long_loses_its_beginning_and_what_just_fits_does_not():
    rows = [{**ROW, "response": "c" * n} for n in (1, 2, 3)]
    assert read(Characters(), *rows, template="{prompt}{response}", max_tokens=4) == [
        ("abc", False),
        ("abcc", False),
        ("bccc", True),
    ]


def test_an_empty_text_is_padding():
    assert graded_texts(Characters(), [{**ROW, "response": ""}], "{response}", 4) == [Text([ord("_")], False)]
