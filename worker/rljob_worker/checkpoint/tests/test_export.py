"""`python -m rljob_worker.checkpoint.export`: the weights of a step as others load them."""

import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_worker.checkpoint.export import actor_engine, main
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.ownership import Owner, claim_run
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.tests.documents import plan_of

PPO = {"name": "PPO", "critic": {"learningRate": 0.25}}
STEPS = (2, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose actor is 0.2 everywhere at step 2 and 0.4 at step 4, and its critic 9."""
    directory = tmp_path_factory.mktemp("run")
    words_tokenizer().save_pretrained(directory / "model")
    plan = plan_of(
        models=[{"name": "actor", "path": write_config(directory / "model"), "initialise": "Random"}], algorithm=PPO
    )
    (directory / "plan.json").write_text(plan.canonical_json())
    engines = {e.name: build_train_engine(plan, e, torch.device("cpu")) for e in plan.engines if e.trainable}
    claim_run(directory, Owner(1))
    for step in STEPS:
        for name, engine in engines.items():
            fill(engine.model, step / 10 if name == actor_engine(plan).name else 9.0)
        RankFiles(directory, Owner(1), "train", 0).save(step, engines, {})
        committer(directory, Owner(1)).commit(step, score=None)
    return directory


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def export(monkeypatch, run, out, step):
    monkeypatch.setattr(sys, "argv", ["export", str(run), str(out), "--step", str(step)])
    return main()


@pytest.mark.parametrize("step", STEPS)
def test_the_actor_of_the_step_is_what_transformers_loads(monkeypatch, capsys, run, tmp_path, step):
    out = tmp_path / "deep" / "out"
    assert export(monkeypatch, run, out, step) == 0
    assert capsys.readouterr().out == f"wrote {out} (step {step})\n"
    model = AutoModelForCausalLM.from_pretrained(out)
    assert all(torch.equal(p, torch.full_like(p, step / 10)) for p in model.parameters())
    assert AutoTokenizer.from_pretrained(out)("be kind").input_ids == [1, 14, 15]


def test_an_empty_directory_is_filled(monkeypatch, run, tmp_path):
    assert export(monkeypatch, run, tmp_path, 4) == 0
    assert (tmp_path / "model.safetensors").exists()


def test_weights_are_in_the_precision_of_the_job_and_nothing_is_allocated_to_train(monkeypatch, run, tmp_path):
    built = []

    def building(*arguments, **options):
        built.append(build_train_engine(*arguments, **options))
        return built[0]

    monkeypatch.setattr("rljob_worker.engines.registry.build_train_engine", building)
    assert export(monkeypatch, run, tmp_path, 4) == 0
    assert built[0].optimizer is None
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16


def test_a_generation_config_is_copied_as_it_is_also_one_that_transformers_would_not_write(monkeypatch, run, tmp_path):
    words = '{"temperature": 0.6, "eos_token_id": [1, 2]}'
    there = run / "model" / "generation_config.json"
    there.write_text(words)
    assert export(monkeypatch, run, tmp_path, 4) == 0
    there.unlink()
    assert (tmp_path / "generation_config.json").read_text() == words


def test_every_failure_is_one_line_with_its_exit_code(monkeypatch, capsys, run, tmp_path):
    def told(out, step):
        code = export(monkeypatch, run, out, step)
        return code, capsys.readouterr().err.replace(str(run), "RUN")

    assert told(tmp_path / "out", 3) == (64, "rljob: RUN has no checkpoint of step 3\n")
    (tmp_path / "file").touch()
    assert told(tmp_path / "file", 4) == (74, f"rljob: cannot write {tmp_path / 'file'}: File exists\n")
    shard = next(committed(run / "checkpoints")[-1].path.rglob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    code, words = told(tmp_path / "out", 4)
    shard.write_bytes(whole)
    assert code == 74
    assert words.startswith("rljob: the checkpoint of step 4 is damaged: ") and "export another step" in words
