"""Models of the Hub at a revision, on a stand-in of it."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch

from rljob_api.vocabulary.data_url import HubModel, hub_model
from rljob_worker.cli.tests.fake_hugging_face import serving
from rljob_worker.data.objects.tests.hub_data_server import point_to
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.adapter import Adapter
from rljob_worker.engines.models.configs import model_config
from rljob_worker.engines.models.sources.mirror import mirrored, origin_of, path_in_job, small_files
from rljob_worker.engines.tests.builders import write_model
from rljob_worker.errors import DeadlineExceeded, InvalidJob, NotHere

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


def test_a_revision_that_is_not_there_is_named(hub, tmp_path):
    with pytest.raises(InvalidJob, match="the model team/tiny has no revision 'v2'; name a branch, a tag or a commit"):
        mirrored(f"{NAME}@v2", tmp_path)


def test_a_token_opens_what_is_private(hub, tmp_path, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(NotHere, match="shows no model team/tiny without an HF_TOKEN; correct the name, or set HF_TOK"):
        mirrored(f"{NAME}@v1", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(InvalidJob, match="shows no model team/tiny; correct the name, or HF_TOKEN and HF_ENDPOINT"):
        mirrored(f"{NAME}@v1", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert path_in_job(mirrored(f"{NAME}@v1", tmp_path)) == f"{NAME}@v1"


def test_a_gated_model_is_named(hub, tmp_path):
    hub.gated = {NAME}
    with pytest.raises(NotHere, match="the model team/tiny only to those that its owner admits; ask for access on its"):
        mirrored(f"{NAME}@v1", tmp_path)


def test_a_busy_hub_is_no_mistake_of_the_job(hub, tmp_path):
    hub.answers = [503] * 99
    with pytest.raises(DeadlineExceeded, match="the Hub did not give the model team/tiny: it answered 503; see to"):
        mirrored(f"{NAME}@v1", tmp_path)


@pytest.mark.parametrize("answered", [0, 1])
def test_a_hub_that_says_nothing_is_named(answered, hub, tmp_path, monkeypatch):
    """When it is asked for the commit, and when it is asked for the files of it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None))
    hub.answers = [200] * answered + [0] * 99
    with pytest.raises(DeadlineExceeded, match="the Hub did not give the model team/tiny: .*timed out; see to the net"):
        mirrored(f"{NAME}@v1", tmp_path)


def test_without_the_hub_a_cache_that_lacks_the_weights_says_how_it_is_filled(hub, tmp_path, monkeypatch):
    filling = "HF_HUB_OFFLINE is set, .* all of the model team/tiny; .*: hf download team/tiny --revision v1"
    with monkeypatch.context() as offline:
        offline.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(NotHere, match=filling):
            mirrored(f"{NAME}@v1", tmp_path)
    mirror = mirrored(f"{NAME}@v1", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotHere, match=filling):
        origin_of(Path(mirror))


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
