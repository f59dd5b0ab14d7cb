"""A byte-pair tokenizer trained on the corpus: a word is one token, a digit always one of its own."""

import string
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# A word takes the spaces on both sides: no token is spent on a space, and digits look the same everywhere.
_PIECES = r"\s?[^\s\d]+\s?|\d|\s"
_SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TOOL_TOKEN = "<|tool|>"
TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}{% for tool in tools %}"
    "{{ tool['function']['name'] }}({{ tool['function']['parameters']['properties'] | join(',') }})"
    "{% endfor %}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    """{{ '<tool_call>{"name":"' + call['function']['name'] + '","arguments":' }}"""
    "{{ call['function']['arguments'] | tojson(separators=(',', ':')) }}{{ '}</tool_call>' }}"
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Shows tools by name and arguments, `calculator(expression)`, and writes calls in Hermes' format without a space."""


def train_tokenizer(
    texts: Iterable[str], vocabulary_size: int = 512, *, has_tools: bool = False
) -> PreTrainedTokenizerFast:
    """Trains on `texts`; printable ASCII can always be encoded, anything else is dropped.

    `vocabulary_size` bounds the vocabulary; merging stops earlier when all pieces of the corpus are tokens.
    has_tools: with a chat template that shows tools and what they answer.
    """
    roles = ["<|system|>", "<|user|>", "<|assistant|>", *([TOOL_TOKEN] if has_tools else [])]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"), _byte_level()]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, _trainer(vocabulary_size))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=roles,
        chat_template=TOOLS_TEMPLATE if has_tools else _CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _byte_level() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _trainer(vocabulary_size: int) -> trainers.BpeTrainer:
    # In the byte alphabet of GPT-2, which ByteLevel uses, space and newline are spelt with these two letters.
    alphabet = list(string.digits + string.ascii_letters + string.punctuation + "ĠĊ")
    return trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )


def encode_prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """Token ids of `question` as one user message, up to where the assistant begins."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def encode_answer(tokenizer: PreTrainedTokenizerFast, answer: str) -> list[int]:
    """Token ids of `answer` and the end token."""
    return [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
