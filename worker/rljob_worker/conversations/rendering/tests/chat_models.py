"""Tokenizers with chat templates of our own, in the forms of published ones."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = ("<|pad|>", "<|im_start|>", "<|im_end|>")
HEADERS = ("<|pad|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
NOT_SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_TOOLS = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may call functions:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
{{ how }}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""
_JSON_CALLS = """Write <tool_call>{"name": ..., "arguments": ...}</tool_call>"""
_XML_CALLS = """Write <tool_call><function=name><parameter=argument>value</parameter></function></tool_call>"""
_CALLS = """{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
_TOOL_ANSWERS = """{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>ROLE{% endif %}
{{- '\n<tool_response>\n' }}
{{- message.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}"""
_ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

HERMES = (
    _TOOLS.replace("{{ how }}", _JSON_CALLS)
    + "{% for message in messages %}{% if message.role == 'tool' %}"
    + _TOOL_ANSWERS.replace("ROLE", "tool")
    + "{% elif message.role == 'assistant' %}<|im_start|>assistant\n{{ message.content }}"
    + _CALLS
    + "<|im_end|>\n{% elif message.role == 'user' or not loop.first %}<|im_start|>{{ message.role }}\n"
    + "{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + _ASKS
)
"""Tools answer in messages of their own."""
QWEN = HERMES.replace("<|im_start|>tool", "<|im_start|>user")
"""Tools answer in messages of the user."""
QWEN_XML = QWEN.replace(_JSON_CALLS, _XML_CALLS).replace(
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}""",
    "<function={{ call.function.name }}>{% for key, value in call.function.arguments.items() %}\n"
    "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>{% endfor %}\n</function>",
)
_LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
QWEN3 = _LAST_USER + QWEN.replace(
    "<|im_start|>assistant\n{{ message.content }}",
    "<|im_start|>assistant\n{% if loop.index0 > ns.last and message.reasoning_content %}<think>\n"
    "{{ message.reasoning_content }}\n</think>\n\n{% endif %}{{ message.content }}",
)
"""Drops thoughts before the last message of a user."""
QWEN3_ALL_KEPT = QWEN3.replace("loop.index0 > ns.last and ", "")
NOT_THINKING = QWEN3.replace(_ASKS, _ASKS.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n"))
"""The prompt says that nothing is thought, and history does not."""
R1 = QWEN.replace("{{ message.content }}" + _CALLS, "{{ message.content.split('</think>')[-1] }}" + _CALLS).replace(
    _ASKS, _ASKS.replace("assistant\n", "assistant\n<think>\n")
)
"""Drops all thoughts, which are a part of the text and begin in the prompt."""
CONTENT_DROPPED = QWEN.replace(
    "{{ message.content }}" + _CALLS, "{% if not message.tool_calls %}" + "{{ message.content }}{% endif %}" + _CALLS
)
"""Drops what is said beside a call."""
LLAMA = """<|begin_of_text|>{% if messages[0].role == 'system' %}<|start_header_id|>system<|end_header_id|>

{{ messages[0].content }}<|eot_id|>{% endif %}{% for message in messages %}
{%- if message.role == 'user' and tools and loop.index0 == (1 if messages[0].role == 'system' else 0) %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nCall a function as {"name": ..., "parameters": ...}.\n\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\n\n' }}{% endfor %}{{ message.content }}<|eot_id|>
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{ message.content | tojson }}<|eot_id|>
{%- elif message.role != 'system' or not loop.first %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content }}<|eot_id|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
NO_TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" + _ASKS
)
ROUNDS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}[{{ loop.index }}]\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant[{{ messages | length + 1 }}]\n{% endif %}"
)
"""Numbers messages, so that what follows one depends on how many came before."""
NO_END = "{% for message in messages %}\n{{ message.role }}: {{ message.content }}{% endfor %}\nassistant: "
"""Ends the assistant's turn with nothing."""

_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""As Qwen and Llama 3 divide text: line breaks stay together."""


@cache
def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    """Byte-level pairs learned of a few words; any text can be encoded."""
    special = HEADERS if template == LLAMA else CHATML
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(_texts(), _trainer(special))
    # as published vocabularies have them: tokens of their own, and not special
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in NOT_SPECIAL])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in VISION])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token=special[-2] if template == LLAMA else "<|im_end|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def _trainer(special: tuple[str, ...]) -> trainers.BpeTrainer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )


def _texts() -> list[str]:
    rng = random.Random(0)
    words = [
        "assistant",
        "user",
        "system",
        "tool",
        '"name"',
        '"arguments"',
        '"parameters"',
        "<|",
        "|>",
        "\n\n",
        "im_end",
    ]
    return [" ".join(rng.choices(words, k=8)) for _ in range(200)]


def tool(name: str = "add", **properties: str) -> dict[str, Any]:
    """The schema of a tool; properties: types by name."""
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "adds", "parameters": parameters}}
