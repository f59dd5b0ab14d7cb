"""Models of the Hub at a revision, on a stand-in of it."""

from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from rljob_api.vocabulary.data_url import HubModel, hub_model
from rljob_worker.cli.tests.fake_hugging_face import serving
from rljob_worker.data.objects.tests.hub_data_server import point_to
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.adapter import Adapter
from rljob_worker.engines.models.configs import model_config
from rljob_worker.engines.models.mirror import mirrored, path_in_job, small_files
from rljob_worker.engines.tests.builders import write_model
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
NAME = "team/tiny"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving() as running:
        point_to(running.endpoint, str(tmp_path / "hub"), monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        path = Path(write_model(tmp_path / "model"))
        running.revisions[NAME, "v1"] = {file.name: file.read_bytes() for file in path.iterdir()}
        running.models[NAME] = {"config.json": b"{}"}
        yield running


def test_a_revision_has_its_own_config_and_weights_which_stay_in_the_cache_of_the_hub(hub, tmp_path, monkeypatch):
    mirror = mirrored(f"{NAME}@v1", tmp_path / "cache")
    ours, theirs = (
        dict(load_policy(path, torch.float32, CPU).named_parameters()) for path in (mirror, str(tmp_path / "model"))
    )
    assert ours and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not list(Path(mirror).glob("*.safetensors")) and path_in_job(mirror) == f"{NAME}@v1"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with small_files(f"{NAME}@v1") as again:
        assert model_config(again).model_type == model_config(mirror).model_type


def test_a_revision_that_is_not_there_and_a_hub_that_gives_nothing_are_named(hub, tmp_path, monkeypatch):
    with pytest.raises(InvalidJob, match="'team/tiny@v2': the hub has no revision 'v2' of it; name a branch"):
        mirrored(f"{NAME}@v2", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidJob, match="'team/tiny@v1': the hub did not give it: .*traffic has been disabled"):
        mirrored(f"{NAME}@v1", tmp_path)


def test_an_adapter_names_its_model_and_the_revision_as_peft_reads_them():
    config = Adapter(f"{NAME}@v1", 2, 4.0, ("q_proj",)).peft_config(())
    assert (config.base_model_name_or_path, config.revision) == (NAME, "v1")


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("gpt2@main", HubModel("gpt2", "main")),
        ("team/tiny@refs%2Fpr%2F1", HubModel("team/tiny", "refs/pr/1")),
        ("team/tiny", HubModel("team/tiny", None)),
        ("./tiny@v1", HubModel("./tiny@v1", None)),
        ("/models/tiny@v1", HubModel("/models/tiny@v1", None)),
        ("s3://models/tiny@v1", HubModel("s3://models/tiny@v1", None)),
    ],
)
def test_a_name_with_a_revision(path, model):
    assert hub_model(path) == model
