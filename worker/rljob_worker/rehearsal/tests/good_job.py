"""A folder with a job that can run, as far as a rehearsal can know; tests spoil it."""

import json
import math
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [*"abcdefgh", "<|user|>", "<|end|>", "<unk>"]
TEMPLATE = "{% for m in messages %}{{ '<|user|> ' + m['content'] + ' <|end|>' }}{% endfor %}"
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
}
MODULE = """
import asyncio

def score(row, scale=1.0):
    return scale

async def judge(row, *, url):
    return 0.0

def stage(batch, context, *, strength=1):
    return {"extra": [0.0] * len(batch)}

def estimate(samples, options, reduce):
    return None

def lose(tokens, options):
    return None

NUMBER = 3
"""


def weights(**shapes: list[int]) -> bytes:
    """A safetensors file of bytes of zeros; `__` in a name stands for a dot."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape)
        header[name.replace("__", ".")] = {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Prompts of 1 to 3 tokens, with answers."""
    return [{"prompt": " ".join("abcdefgh"[: i % 3 + 1]), "answer": str(start + i)} for i in range(count)]


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def tokenizer_json() -> str:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer.to_str()


def files() -> dict[str, str | bytes]:
    """By path in the folder."""
    return {
        "data/train.jsonl": lines(rows(12)),
        "data/validation.jsonl": lines(rows(4, start=100)),
        "model/config.json": json.dumps(CONFIG),
        "model/tokenizer.json": tokenizer_json(),
        "model/tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}),
        "model/model.safetensors": weights(
            model__embed_tokens__weight=[16, 32],
            model__layers__0__self_attn__q_proj__weight=[32, 32],
            model__layers__0__mlp__up_proj__weight=[64, 32],
            model__layers__0__input_layernorm__weight=[32],
        ),
        "mine.py": MODULE,
    }


def document() -> dict[str, Any]:
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "good"},
        "spec": {
            "models": [{"name": "actor", "path": "model"}],
            "data": {
                "train": [{"path": "data/train.jsonl"}],
                "validation": [{"path": "data/validation.jsonl"}],
                "batchSize": 4,
                "maxPromptTokens": 16,
            },
            "rewards": [{"name": "mine", "run": "mine:score", "column": "answer", "options": {"scale": 2.0}}],
            "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.0}},
            "workerGroups": [{"name": "train", "accelerator": {"profile": "cpu", "count": 1}}],
            "rollout": {"maxResponseTokens": 16},
            "dataBuffer": {"memory": "32Mi"},
            "stop": {"steps": 2},
        },
    }


def write(folder: Path, changed: dict[str, Any] | None = None, spoilt: dict[str, Any] | None = None) -> Path:
    """The job's file. changed: what replaces files, None for none.   spoilt: fields of the spec by dotted path."""
    for name, content in {**files(), **(changed or {})}.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    job = document()
    for path, value in (spoilt or {}).items():
        _set(job["spec"], path.split("."), value)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def _set(at: Any, parts: list[str], value: Any) -> None:
    *above, last = [int(part) if part.isdecimal() else part for part in parts]
    for part in above:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
    at[last] = value
