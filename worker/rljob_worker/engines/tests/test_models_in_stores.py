"""Models in a bucket, on a real S3 server: the same weights as from a disk, of which a rank reads its rows."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.models.sources.mirror import mirrored
from rljob_worker.engines.models.sources.remote_tensors import RemoteTensors
from rljob_worker.engines.tests.builders import write_model
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket

CPU = torch.device("cpu")
URL = "s3://models/tiny"


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("models", monkeypatch) as server:
        yield server


def upload(s3, path):
    for file in Path(path).iterdir():
        s3.put(f"models/tiny/{file.name}", file.read_bytes())


def test_a_model_in_a_store_has_the_weights_that_it_has_on_a_disk(tmp_path, s3):
    path = write_model(tmp_path / "model")
    upload(s3, path)
    mirror = mirrored(URL, tmp_path / "cache")
    ours, theirs = (dict(load_policy(item, torch.float32, CPU).named_parameters()) for item in (mirror, path))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and len(ours) == len(theirs)
    assert not list(Path(mirror).glob("*.safetensors"))
    by_layers = dict(PolicyByLayers.of_files(mirror, torch.float32).tensors())
    assert all(torch.equal(by_layers[name], theirs[name]) for name in theirs) and len(by_layers) == len(theirs)


def test_numbers_in_a_store_that_are_no_weights_are_named(tmp_path, s3):
    path = write_model(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors") | {"model.norm.weight": torch.ones(32).to(torch.int8)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    upload(s3, path)
    with pytest.raises(BadData, match="model.norm.weight is I8 in model.safetensors, and weights are F64"):
        load_policy(mirrored(URL, tmp_path / "cache"), torch.float32, CPU)


def test_rows_of_a_tensor_are_one_request_for_their_bytes(tmp_path, s3):
    path = write_model(tmp_path / "model")
    upload(s3, path)
    name = "model.embed_tokens.weight"
    tensors = RemoteTensors.open(storage_path(f"{URL}/model.safetensors"))
    whole = dict(load_policy(path, torch.float32, CPU).named_parameters())[name]
    s3.asked.clear()

    rows = tensors.get_slice(name)[slice(3, 5)]

    assert torch.equal(rows.float(), whole[3:5])
    (request,) = s3.asked
    assert torch.equal(tensors.get_slice(name)[slice(3, 5), slice(1, 4)].float(), whole[3:5, 1:4])
    first, last = map(int, request.rpartition("=")[2].split("-"))
    assert last - first + 1 == rows.numel() * rows.element_size()


def test_a_mirror_is_made_once_and_anew_when_the_folder_changes(tmp_path, s3):
    upload(s3, write_model(tmp_path / "model"))
    first = mirrored(URL, tmp_path / "cache")
    s3.asked.clear()
    assert mirrored(URL, tmp_path / "cache") == first
    assert not any(request.startswith("GET /models/tiny/") for request in s3.asked)
    s3.put("models/tiny/chat_template.jinja", b"{{ messages }}")
    again = mirrored(URL, tmp_path / "cache")
    assert again != first and (Path(again) / "chat_template.jinja").is_file()


def test_a_run_in_a_store_is_left_to_those_who_make_a_model_of_it(tmp_path, s3):
    s3.put("models/run/checkpoints/step-00000002-attempt-1/manifest.json", b"{}")
    assert mirrored("s3://models/run", tmp_path) == "s3://models/run"


@pytest.mark.parametrize(
    ("url", "words"), [(URL, "no config.json in it"), ("s3://others/tiny", "there is no such bucket")]
)
def test_a_folder_without_a_model_is_refused_by_name(tmp_path, s3, url, words):
    with pytest.raises(InvalidJob, match=f"model path '{url}': .*{words}"):
        mirrored(url, tmp_path)


def test_a_file_that_was_cut_short_is_bad_data(tmp_path, s3):
    path = write_model(tmp_path / "model")
    upload(s3, path)
    s3.put("models/tiny/model.safetensors", (Path(path) / "model.safetensors").read_bytes()[:-4])
    with pytest.raises(BadData, match="shorter or longer than its header says"):
        load_policy(mirrored(URL, tmp_path / "cache"), torch.float32, CPU)
