"""Jobs whose data and models are elsewhere: on a real S3 server, and on a stand-in of the hub."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event

import pytest
import yaml

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.cli.tests.fake_hugging_face import serving
from rljob_worker.cli.validate import verdict_on
from rljob_worker.process.bounded import within
from rljob_worker.rehearsal import rehearse as rehearsing
from rljob_worker.rehearsal.inputs.input_check import check_inputs
from rljob_worker.rehearsal.rehearse import rehearse
from rljob_worker.rehearsal.tests.good_job import files, write
from rljob_worker.rehearsal.tests.test_bad_inputs import parquet
from rljob_worker.storage.tests.s3_server import SLOW_DOWN, s3_bucket

TRAIN, VALIDATION, MODEL = "data.train.0.path", "data.validation.0.path", "models.0.path"
IN_STORE = {
    TRAIN: "s3://jobs/data/train.jsonl",
    VALIDATION: "s3://jobs/data/validation.jsonl",
    MODEL: "s3://jobs/model",
}
MANY = {"data.maxPromptTokens": 2, "data.batchSize": 12}
"""Of 12 prompts of 1, 2 and 3 tokens in turn 8 are short enough."""


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("jobs", monkeypatch) as server:
        for name, content in files().items():
            server.put(f"jobs/{name}", content if isinstance(content, bytes) else content.encode())
        yield server


@pytest.fixture
def near(monkeypatch):
    """Looks are made in this process: one of their own imports everything anew."""

    def look(spec, folder, environment, limit_seconds):
        with monkeypatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return check_inputs(spec, folder, os.environ, Path(scratch))

    monkeypatch.setattr(rehearsing, "check_remote_inputs", look)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield running


def verdict(tmp_path, spoilt=None, **options):
    return verdict_on(write(tmp_path, {}, IN_STORE | (spoilt or {})), (), **options)


def test_a_job_in_a_store_is_looked_at_whole(tmp_path, s3):
    assert verdict(tmp_path).text() == f"{tmp_path}/job.yaml: good is valid"
    assert not any("safetensors" in request for request in s3.asked), "a rehearsal reads no weights"


@pytest.mark.parametrize(
    ("spoilt", "path", "words"),
    [
        ({"data.promptColumn": "promt"}, "data.promptColumn", "Did you mean 'prompt'"),
        (MANY, "data.batchSize", "a batch has more prompts than data.train, which has 8"),
        ({TRAIN: "s3://jobs/data/gone.jsonl"}, "data.train[0].path", "nothing is at s3://jobs/data/gone.jsonl"),
        ({TRAIN: "s3://nobody/train.jsonl"}, "data.train[0].path", "no such bucket (404 Not Found (NoSuchBucket"),
        ({MODEL: "s3://jobs/gone"}, "models[0].path", "s3://jobs/gone has no config.json, and holds nothing"),
        ({MODEL: "s3://nobody/model"}, "models[0].path", "s3://nobody/model: there is no such bucket"),
    ],
)
def test_what_is_wrong_there_is_found(tmp_path, s3, near, spoilt, path, words):
    result = verdict(tmp_path, spoilt)
    assert words in result.text() and result.problems[0].path == f"spec.{path}"


def test_files_that_a_model_in_a_store_lacks_are_named_where_it_is(tmp_path, s3, near):
    s3.delete("jobs/model/model.safetensors")
    s3.delete("jobs/model/tokenizer.json")
    text = verdict(tmp_path).text()
    assert "s3://jobs/model has no weights as safetensors files" in text
    assert "no tokenizer can be loaded from s3://jobs/model" in text


def test_tables_in_a_store_are_read(tmp_path, s3, near):
    table = {"prompt": ["a"] * 3, "answer": ["1"] * 3}
    for number in range(2):
        s3.put(f"jobs/tables/{number}.parquet", parquet(table))
    assert verdict(tmp_path, {TRAIN: "s3://jobs/tables"}).problems == ()
    (problem,) = verdict(tmp_path, {TRAIN: "s3://jobs/tables", "data.batchSize": 8}).problems
    assert "data.train, which has 6" in problem.message


def test_without_credentials_or_wish_nobody_is_asked(tmp_path, s3, near, monkeypatch):
    result = verdict(tmp_path, looks_at_data=False)
    assert result.problems == () and result.unseen == ("the data, as --no-data says",)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    result = verdict(tmp_path)
    assert result.problems == () and result.unseen == (
        "the tokenizer of s3://jobs/model, which is in a store",
        "s3://jobs/data/train.jsonl, which is in a store",
        "s3://jobs/data/validation.jsonl, which is in a store",
    )
    assert s3.asked == []


def test_variables_of_the_job_lead_to_its_store(tmp_path, s3, monkeypatch):
    """Not to where the shell's lead, whose buckets have other owners."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert verdict(tmp_path, {"env": [{"name": "AWS_ENDPOINT_URL", "value": s3.url}]}).unseen == ()


def test_a_store_that_refuses_is_no_problem_of_the_job(tmp_path, s3, near):
    """It runs where the credentials are others."""
    s3.require_credentials()
    result = verdict(tmp_path)
    assert result.problems == () and len(result.unseen) == 3
    assert all("the store refuses: 403 Forbidden" in item for item in result.unseen)


def test_a_store_that_does_not_answer_is_waited_for_in_bounds(tmp_path, s3, near):
    s3.fail = lambda request: SLOW_DOWN if "/data/" in request else None
    result = verdict(tmp_path, {"data.validation": []})
    assert result.problems == ()
    assert "s3://jobs/data/train.jsonl: no success within 2 s of retries" in result.unseen[0]


def test_a_look_that_takes_too_long_is_given_up(tmp_path, s3):
    document = yaml.safe_load(write(tmp_path, {}, IN_STORE).read_text())
    spec = RLJobSpec.model_validate(document["spec"])
    result = rehearse(spec, tmp_path, {**os.environ, "RLJOB_CODE": str(tmp_path)}, look_seconds=0.001)
    assert result.found == ()
    assert result.unseen[-1] == "what is in stores and on the hub, which took longer than 0.001 s"


@pytest.mark.slow
def test_a_model_of_the_hub_is_looked_at_where_the_hub_is_known(tmp_path, hub):
    model = {name.removeprefix("model/"): content for name, content in files().items() if name.startswith("model/")}
    hub.models["team/tiny"] = {
        name: content if isinstance(content, bytes) else content.encode() for name, content in model.items()
    }
    job = write(tmp_path, {}, {MODEL: "team/tiny"})
    assert verdict_on(job, ()).text() == f"{job}: good is valid"
    longer = verdict_on(job, ["data.maxPromptTokens=2", "data.batchSize=12"])
    assert "data.train, which has 8" in longer.text(), "its tokenizer counted"

    del hub.models["team/tiny"]["model.safetensors"]
    assert "team/tiny has no weights as safetensors files" in verdict_on(job, ()).text()


WRONG_MODELS = {
    "team/tyni": "the hub shows no model team/tyni",
    "team/tiny@v9": "the hub has no revision v9 of the model team/tiny",
    "models/of/the/team": "models/of/the/team is neither a directory here nor a name of the hub",
    "./gone": "there is no such file or directory",
}


def test_models_that_the_hub_cannot_have_are_found(tmp_path, hub, monkeypatch):
    """All in one job: whoever asks the hub is a process that imports its library."""
    hub.models["team/tiny"] = {}
    monkeypatch.setenv("HF_TOKEN", "hf_0")
    models = [{"name": f"m{number}", "path": path} for number, path in enumerate(WRONG_MODELS)]
    job = write(tmp_path, {}, {"models": [models[0] | {"name": "actor"}, *models[1:]]})
    said = {problem.path: problem.message for problem in verdict_on(job, ()).problems}
    for number, words in enumerate(WRONG_MODELS.values()):
        assert words in said[f"spec.models[{number}].path"]


@pytest.mark.slow
def test_what_a_hub_does_not_give_is_missed_on_this_machine_alone(tmp_path, hub, monkeypatch):
    job = write(tmp_path, {}, {MODEL: "team/tiny"})
    shy = verdict_on(job, ())
    assert shy.problems == ()
    assert (
        "there is no directory team/tiny here, the hub shows no model team/tiny without an HF_TOKEN, and"
        in shy.lacking[0].message
    )
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    gone = verdict_on(job, ["models[0].path=team/tyni"])
    assert gone.problems == () and gone.lacking[0].source == "--set models[0].path=team/tyni"
    assert "the hub did not answer: " in gone.lacking[0].message and "correct the name" in gone.lacking[0].fix.lower()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    both = verdict_on(job, ["data.promptColumn=qestion"])
    assert "spec.data.promptColumn" in {problem.path for problem in both.problems}
    assert "not on this machine: spec.models[0].path (line " in both.text()


@pytest.mark.slow
def test_what_the_hubs_cache_has_is_looked_at_where_the_hub_does_not_answer(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    cached = tmp_path / "home" / "hub" / "models--team--tiny"
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    for name, content in files().items():
        if name.startswith("model/"):
            data = content if isinstance(content, bytes) else content.encode()
            (snapshot / name.removeprefix("model/")).write_bytes(data)
    job = write(tmp_path, {}, {MODEL: "team/tiny"})
    assert verdict_on(job, ()).text() == f"{job}: good is valid"
    assert "data.train, which has 8" in verdict_on(job, ["data.maxPromptTokens=2", "data.batchSize=12"]).text()


def test_ctrl_c_while_a_hub_is_asked_ends_it_without_a_word(tmp_path, hub):
    job = write(tmp_path, {}, {MODEL: "team/tiny"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TEST_TIMEOUT_SECONDS)
        environment = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = [sys.executable, "-m", "rljob_worker.cli", "validate", str(job)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
            asked, _ = silent.accept()
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=TEST_TIMEOUT_SECONDS)
            asked.close()
    assert (process.returncode, errors.strip()) == (130, b"")


def test_a_question_that_nobody_answers_is_given_up():
    end = Event()
    with pytest.raises(TimeoutError):
        within(0.01, end.wait)
    end.set()
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(KeyError, match="x"):
        within(60.0, lambda: {}["x"])
