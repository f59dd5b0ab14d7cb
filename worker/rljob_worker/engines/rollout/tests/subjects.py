"""Engines under one contract, each on a tiny model that its kernels can run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.models import load_policy, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.rollout.cache_bytes import cache_bytes_per_token
from rljob_worker.engines.rollout.http.connection import ServerConnection
from rljob_worker.engines.rollout.http.engine import HTTPRollout, RemoteModel
from rljob_worker.engines.rollout.http.routes import ROUTES
from rljob_worker.engines.rollout.http.tests.stand_in import StandIn
from rljob_worker.engines.rollout.http.weight_folder import WeightFolder
from rljob_worker.engines.rollout.limits import Limits
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.rollout.vocabulary import Vocabulary

VOCABULARY, END, POSITIONS = 96, 1, 256
MAX_BATCH_ROWS = 12
CPU = torch.device("cpu")
LETTERS = Vocabulary(tuple(bytes([32 + token]) for token in range(VOCABULARY)), {"<end>": END})
"""Every token is one letter, as in ASCII."""

Weights = list[tuple[str, torch.Tensor]]


def write_model(directory: Path, seed: int = 0) -> str:
    """A Qwen3 whose next tokens are far from equally likely, with tied embeddings, as files."""
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
        initializer_range=0.15,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=END,
        architectures=["Qwen3ForCausalLM"],
    )
    config.save_pretrained(directory)
    model = random_policy(str(directory), torch.float32, seed)
    model.save_pretrained(directory)
    return str(directory)


def weights_of(model: PreTrainedModel) -> Weights:
    """Every parameter once, by name."""
    return [(name, parameter.detach().clone()) for name, parameter in model.named_parameters()]


def other_weights(model: PreTrainedModel, seed: int = 1) -> Weights:
    """Those of a policy some updates later: every tensor differs."""
    draw = torch.Generator().manual_seed(seed)
    noise = [0.03 * torch.randn(item.shape, generator=draw) for _, item in weights_of(model)]
    return [(name, item + more) for (name, item), more in zip(weights_of(model), noise, strict=True)]


def vllm_engine(path: str, max_batch_rows: int = MAX_BATCH_ROWS) -> RolloutEngine:
    """vLLM on the CPU."""
    settings = VLLMSettings("float32", max_batch_rows, longest_row=POSITIONS)
    return load_start()(settings, path, PolicyByLayers.of_files(path, torch.float32), (END,), CPU, LETTERS)


def transformers_engine(path: str) -> RolloutEngine:
    """Ours, on the CPU, with room for eight of the longest rows."""
    policy = load_policy(path, torch.float32, CPU)
    room = MAX_BATCH_ROWS * POSITIONS * cache_bytes_per_token(policy.config, 4)
    return TransformersRollout(policy, CPU, (END,), 1.0, lambda: room, LETTERS)


class ServedRollout(HTTPRollout):
    """With a server of its own."""

    server: StandIn

    def close(self) -> None:
        super().close()
        self.server.close()


def http_engine(path: str, tokens_per_call: int = 1, routes: str = "SGLang") -> ServedRollout:
    """Ours, in a server with the routes of SGLang or vLLM."""
    server = StandIn(path)
    named = load_policy(path, torch.float32, CPU).named_parameters(remove_duplicate=False)
    limits = Limits(VOCABULARY, POSITIONS, ROLLOUT_ENGINES["HTTP"].temperatures)
    model = RemoteModel(dict(named), torch.float32, (END,), limits, LETTERS)
    folder = WeightFolder(Path(tempfile.mkdtemp()) / "weights", Qwen3Config.from_pretrained(path), file_bytes=50_000)
    connection = ServerConnection(server.url, None, TEST_TIMEOUT_SECONDS)
    engine = ServedRollout(connection, ROUTES[routes], model, folder, tokens_per_call)
    engine.server = server
    return engine


ENGINES: dict[str, Callable[[str], RolloutEngine]] = (
    {"VLLM": vllm_engine} if find_spec("vllm") else {"Transformers": transformers_engine, "HTTP": http_engine}
)
"""What this environment is for: `make test` runs the contract for ours, `make vllm-test` for vLLM."""
