"""Which policies may play the agents of one team."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup.conversations import require_alike


def tokenizer(words="a b <end>", **special):
    vocabulary = {word: number for number, word in enumerate(words.split())}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="a")), **special)


def test_policies_of_a_team_have_one_vocabulary_and_the_special_tokens_of_one():
    solver = tokenizer(eos_token="<end>", pad_token="b")
    require_alike("left", "right", {"left": solver, "right": tokenizer(eos_token="<end>", pad_token="b")})
    swapped = tokenizer(eos_token="b", pad_token="<end>")
    with pytest.raises(InvalidJob, match=r"policies left and right differ in special tokens: eos_token, pad_token;"):
        require_alike("left", "right", {"left": solver, "right": swapped})
    with pytest.raises(InvalidJob, match=r"policies left and right have other tokens"):
        require_alike("left", "right", {"left": solver, "right": tokenizer("b a <end>", eos_token="<end>")})
