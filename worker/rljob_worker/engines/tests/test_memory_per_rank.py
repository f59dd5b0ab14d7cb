"""What a rank has in memory at once, of every byte that torch hands out: parts of a model, never the whole."""

from pathlib import Path

import pytest
import torch

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import WeightFiles, empty_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_of_all, write_model
from rljob_worker.engines.tests.peak import Peak
from rljob_worker.engines.tests.ranks import run_ranks

RANKS = 4
LAYERS = 24
CPU = torch.device("cpu")


def work(rank: int, path: str) -> dict[str, int]:
    """Peaks of loading and of a second update, in several micro-batches, and the size of the model."""
    settings = TrainSettings(tokens_per_micro_batch=12, held_bytes=0, min_unit_bytes=0)
    with Peak() as loading:
        engine = FSDPEngine(empty_policy(path, torch.float32), settings, CPU, mesh_of_all(), WeightFiles.find(path))
    whole = sum(parameter.numel() * parameter.element_size() for parameter in engine.model.parameters())
    batch = a_batch([3, 2, 4, 3])
    first = engine.update(batch, PolicyGradient())
    assert first["update/micro_batches"].value > 1
    with Peak() as updating:
        engine.update(batch, PolicyGradient())
    # only a file of weights, which is mapped and not read, is as large as the whole
    return {"whole": whole, "loading": loading.bytes(whole), "updating": updating.bytes(whole)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    directory: Path = tmp_path_factory.mktemp("memory")
    path = write_model(directory / "model", hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS)
    return run_ranks(RANKS, work, directory / "ranks", path)


@pytest.mark.slow
def test_loading_takes_memory_for_a_rank_s_part(ranks: list[dict[str, int]]) -> None:
    # weights and two optimizer states, a quarter of each: 0.75 of the model
    for rank in ranks:
        assert 0.7 * rank["whole"] < rank["loading"] < 0.9 * rank["whole"]


@pytest.mark.slow
def test_gradients_add_up_in_a_rank_s_part(ranks: list[dict[str, int]]) -> None:
    # a quarter of the gradients, and a dozen times one of 24 layers: gathered, sent, reduced; whole gradients: over 2
    for rank in ranks:
        assert 0.25 * rank["whole"] < rank["updating"] < 1.2 * rank["whole"]
