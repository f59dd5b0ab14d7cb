"""The card of an exported model, and its way to a hub, which stands in on loopback."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.tests.builders import TWO_POLICIES, dag, make_plan, pipeline
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.checkpoint.model_card import model_card
from rljob_worker.cli.app import app
from rljob_worker.cli.export import write_card
from rljob_worker.cli.tests.fake_hugging_face import serving
from rljob_worker.errors import InvalidJob
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.tests.s3_server import s3_bucket

PUSH = """
import sys
from pathlib import Path
from rljob_worker.cli.export import push_model
from rljob_worker.errors import StorageError
try:
    push_model(Path(sys.argv[1]), "me/sums", private=True, message="sums, step 3")
except StorageError as error:
    sys.exit(str(error))
"""


def head_of(card):
    return yaml.safe_load(card.split("---")[1])


def test_a_card_says_what_was_trained_and_what_it_reached():
    plan = make_plan("models=[{name: actor, path: Qwen/Qwen3-0.6B}]")
    records = [{"step": step, "reward/mean": step / 10} for step in (1, 2, 3)] + [{"step": 4, "reward/mean": 9.0}]
    card = model_card(plan, "actor", 3, [{"step": 0, "validation/accuracy": 0.25}, *records], is_adapter=False)
    assert head_of(card) == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "base_model": "Qwen/Qwen3-0.6B",
        "tags": ["rljob", "reinforcement-learning", "grpo"],
    }  # fmt: skip
    assert "| mean reward | 0.3 |" in card and "| accuracy in validation | 0.25 |" in card
    assert "KL divergence" not in card, "no step tells it"
    training = yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])
    assert training["algorithm"]["name"] == "GRPO" and "rollout" in training


def test_a_card_is_about_one_of_several_policies():
    plan = make_plan(*TWO_POLICIES, dag(*pipeline("left", "correct"), *pipeline("right", "short")))
    records = [{"step": 1, "policy/left/reward/mean": 0.25, "policy/right/reward/mean": 0.5, "reward/mean": 0.375}]
    card = model_card(plan, "right", 1, records, is_adapter=False)
    assert head_of(card)["base_model"] == "models/right" and "# small: right" in card
    assert "| mean reward | 0.5 |" in card and "| reward `short`, weight 1 |" in card and "`correct`" not in card


def test_a_card_of_a_model_that_sees_says_so():
    card = model_card(make_plan("data.imagesColumn=images"), "actor", 1, [], is_adapter=False)
    assert head_of(card)["pipeline_tag"] == "image-text-to-text"


def test_a_folder_of_this_machine_is_nothing_that_a_hub_knows():
    card = model_card(make_plan("models=[{name: actor, path: /home/me/model}]"), "actor", 1, [], is_adapter=True)
    assert "base_model" not in head_of(card) and head_of(card)["library_name"] == "peft"
    assert "/home/me" not in card


def test_a_card_is_written_from_the_run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    directory.write(directory.plan, make_plan().canonical_json())
    directory.metrics.write_text(json.dumps({"step": 1, "reward/mean": 0.5}) + "\n")
    write_card(directory, tmp_path, 1, None)
    assert "| mean reward | 0.5 |" in (tmp_path / "README.md").read_text()


def test_a_critic_has_no_card(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    directory.write(directory.plan, make_plan("algorithm={name: PPO}").canonical_json())
    write_card(directory, tmp_path, 1, "critic")
    assert not (tmp_path / "README.md").exists()


def test_a_card_goes_to_a_store_beside_the_model(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    directory.write(directory.plan, make_plan().canonical_json())
    with s3_bucket("models", monkeypatch):
        write_card(directory, storage_path("s3://models/mine"), 1, None)
        assert "# " in storage_path("s3://models/mine/README.md").read_text()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("s3://others/mine", "s3://others/mine: there is no such bucket (404 Not Found (NoSuchBucket"),
        ("s3://models/taken", "s3://models/taken exists and is not an empty directory"),
        ("s3://models/taken/file", "exists and is not an empty directory"),
        ("s3://models/m*", "a folder is one place and no pattern"),
        ("https://models/mine", "https is not an object store"),
    ],
)
def test_where_a_model_cannot_go_is_said_before_it_is_looked_for(monkeypatch, out, words):
    with s3_bucket("models", monkeypatch) as s3:
        s3.put("models/taken/file", b"1")
        done = CliRunner().invoke(app, ["export", "no-such-run", out])
    assert isinstance(done.exception, InvalidJob) and words in str(done.exception)


def test_a_store_that_refuses_or_is_to_be_pushed_from_is_named(monkeypatch):
    with s3_bucket("models", monkeypatch) as s3:
        pushed = CliRunner().invoke(app, ["export", "no-such-run", "s3://models/mine", "--push", "me/mine"])
        s3.require_credentials()
        refused = CliRunner().invoke(app, ["export", "no-such-run", "s3://models/mine"])
    assert "only a directory of this machine is pushed" in str(pushed.exception)
    assert isinstance(refused.exception, InvalidJob) and "AWS_ACCESS_KEY_ID" in str(refused.exception)


def pushed(tmp_path, endpoint):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text("---\ntags: [a]\n---\n# Sums\n")
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    environment = {
        **os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_of_a_test", "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", PUSH, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * TEST_TIMEOUT_SECONDS)


def test_a_model_is_pushed_whole_with_the_users_token(tmp_path):
    with serving() as hub:
        done = pushed(tmp_path, hub.endpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pushed to http://127.0.0.1:")
    assert hub.models["me/sums"]["model.safetensors"] == b"weights" * 1000
    assert hub.models["me/sums"]["README.md"].startswith(b"---\ntags")
    assert hub.private == {"me/sums"} and hub.tokens == {"Bearer hf_of_a_test"}


def test_a_hub_that_refuses_leaves_the_files_and_says_what_to_do(tmp_path):
    with serving(refuses=True) as hub:
        done = pushed(tmp_path, hub.endpoint)
    assert done.returncode == 1 and hub.models == {}
    assert "model is written, and me/sums is not pushed" in done.stderr and "hf auth login" in done.stderr


def test_a_hub_that_is_not_there_leaves_the_files_and_says_what_to_do(tmp_path):
    with serving() as hub:
        gone = hub.endpoint
    done = pushed(tmp_path, gone)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"me/sums is not pushed to {gone}" in done.stderr and "see to the network and HF_ENDPOINT" in done.stderr


def test_a_name_that_no_hub_has_is_refused_first(tmp_path):
    with pytest.raises(InvalidJob, match="OWNER/NAME"):
        CliRunner().invoke(app, ["export", "run", str(tmp_path / "out"), "--push", "sums"], catch_exceptions=False)
