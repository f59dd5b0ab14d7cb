"""A tokenizer of whole words, built here: no file, no network."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<s>", "<unk>", "<system>", "<user>", "<assistant>", *"abcdefgh", "be", "kind"]

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<{{ m.role }}> {{ m.content }} "
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def words_tokenizer(template=None):
    """Puts <s> before a bare text, as many base models' tokenizers do."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", bos_token="<s>")
    tokenizer.name_or_path = "models/tiny"
    tokenizer.chat_template = template
    return tokenizer


def words(ids):
    return " ".join(WORDS[i] for i in ids)
