"""`python -m rljob_worker.checkpoint.export`: the weights of a step as others load them."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from rljob_worker.checkpoint.export import main
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer
from rljob_worker.engines.models import WeightFiles, empty_value_model, give_memory, load_policy
from rljob_worker.engines.models.sources.mirror import mirrored, with_mirrors
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.builders import write_config, write_model
from rljob_worker.engines.tests.seeing import write_vision_model
from rljob_worker.rundir.ownership import Owner, claim_run
from rljob_worker.storage.tests.s3_server import s3_bucket
from rljob_worker.tests.documents import plan_of

pytestmark = pytest.mark.usefixtures("own_environment")

PPO = {"name": "PPO", "critic": {"learningRate": 0.25}}
SHOWS = {"train": [{"path": "some/data"}], "batchSize": 4, "imagesColumn": "images"}
STEPS = (2, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose actor is 0.2 everywhere at step 2 and 0.4 at step 4, and its critic 9."""
    directory = tmp_path_factory.mktemp("run")
    words_tokenizer().save_pretrained(directory / "model")
    plan = plan_of(
        models=[{"name": "actor", "path": write_config(directory / "model"), "initialise": "Random"}],
        training={"precision": "BFloat16"},
        algorithm=PPO,
    )
    (directory / "plan.json").write_text(plan.canonical_json())
    engines = {e.name: build_train_engine(plan, e, torch.device("cpu")) for e in plan.engines if e.trainable}
    claim_run(directory, Owner(1))
    for step in STEPS:
        for name, engine in engines.items():
            fill(engine.model, step / 10 if name == plan.trainer_of("actor").name else 9.0)
        RankFiles(directory, Owner(1), "train", 0).write(step, RankPart.copy(engines, {}))
        committer(directory, Owner(1)).commit(step, score=None)
    return directory


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def export(monkeypatch, run, out, step, *options):
    monkeypatch.setattr(sys, "argv", ["export", str(run), str(out), "--step", str(step), *options])
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


def test_whoever_waits_sees_file_after_file(monkeypatch, caplog, run, tmp_path):
    assert export(monkeypatch, run, tmp_path, 4) == 0
    reported = [record.getMessage() for record in caplog.records if record.name.startswith("rljob_worker.")]
    assert reported == [f"exporting step 4 of {run}", "  model.safetensors"]


def test_weights_are_in_the_precision_of_the_job(monkeypatch, run, tmp_path):
    assert export(monkeypatch, run, tmp_path, 4) == 0
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16


def test_a_critic_is_exported_with_its_head_for_another_job(monkeypatch, capsys, run, tmp_path):
    assert export(monkeypatch, run, tmp_path / "critic", 4, "--model", "critic") == 0
    path = str(tmp_path / "critic")
    critic = empty_value_model(path, torch.float32)
    give_memory(critic, torch.device("cpu"))
    WeightFiles.find(path).fill(critic)
    assert all(torch.equal(p, torch.full_like(p, 9.0)) for p in critic.parameters())
    assert export(monkeypatch, run, tmp_path / "out", 4, "--model", "reference") == 64
    assert "--model reference: the run does not train it; there is actor, critic" in capsys.readouterr().err


def test_a_model_goes_to_a_store_and_is_known_for_one_once_it_is_whole(monkeypatch, capsys, run, tmp_path):
    with s3_bucket("models", monkeypatch) as s3:
        written = []
        s3.fail_write = written.append
        assert export(monkeypatch, run, "s3://models/mine", 4) == 0
        assert capsys.readouterr().out == "wrote s3://models/mine (step 4)\n"
        assert written[-1] == "PUT /models/mine/config.json" and "PUT /models/mine/model.safetensors" in written
        mirror = mirrored("s3://models/mine", tmp_path)
        policy = load_policy(mirror, torch.bfloat16, torch.device("cpu"))
        assert all(torch.equal(p, torch.full_like(p, 0.4)) for p in policy.parameters())
        assert AutoTokenizer.from_pretrained(mirror)("be kind").input_ids == [1, 14, 15]

        s3.require_credentials()
        assert export(monkeypatch, run, "s3://models/again", 4) == 74
        assert "cannot write s3://models/again: the store refuses: 403 Forbidden" in capsys.readouterr().err


def test_a_generation_config_is_copied_as_it_is_also_one_that_transformers_would_not_write(monkeypatch, run, tmp_path):
    words = '{"temperature": 0.6, "eos_token_id": [1, 2]}'
    there = run / "model" / "generation_config.json"
    there.write_text(words)
    assert export(monkeypatch, run, tmp_path, 4) == 0
    there.unlink()
    assert (tmp_path / "generation_config.json").read_text() == words


def test_every_failure_is_one_line_with_its_exit_code(monkeypatch, capsys, run, tmp_path):
    def reported(out, step):
        code = export(monkeypatch, run, out, step)
        return code, capsys.readouterr().err.replace(str(run), "RUN")

    assert reported(tmp_path / "out", 3) == (64, "rljob: RUN has no checkpoint of step 3\n")
    (tmp_path / "file").touch()
    assert reported(tmp_path / "file", 4) == (74, f"rljob: cannot write {tmp_path / 'file'}: File exists\n")
    shard = next(committed(run / "checkpoints")[-1].path.rglob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    code, words = reported(tmp_path / "out", 4)
    shard.write_bytes(whole)
    assert code == 74
    assert words.startswith("rljob: the checkpoint of step 4 is damaged: ") and "export another step" in words


def adapted_run(directory, path, **spec):
    """A run that trained an adapter of 0.5 everywhere beside the model of a directory, or of a store."""
    adapter = {"rank": 2, "alpha": 4, "targets": ["q_proj"]}
    models = [{"name": "actor", "path": path, "adapter": adapter}]
    plan = plan_of(models=models, training={"precision": "Float32"}, **{"algorithm": PPO, **spec})
    (directory / "plan.json").write_text(plan.canonical_json())
    here = with_mirrors(plan, directory / "cache")
    engine = build_train_engine(here, here.trainer_of("actor"), torch.device("cpu"))
    with torch.no_grad():
        for parameter in engine.optimizer.parameters.values():
            parameter.fill_(0.5)
    claim_run(directory, Owner(1))
    RankFiles(directory, Owner(1), "train", 0).write(1, RankPart.copy({plan.trainer_of("actor").name: engine}, {}))
    committer(directory, Owner(1), [("train", 0)]).commit(1, score=None)


def test_an_adapter_beside_a_model_in_a_store_is_known_by_its_url(monkeypatch, tmp_path):
    from peft import PeftConfig

    path = write_model(tmp_path / "model")
    words_tokenizer().save_pretrained(path)
    with s3_bucket("models", monkeypatch) as s3:
        for file in (tmp_path / "model").iterdir():
            s3.put(f"models/tiny/{file.name}", file.read_bytes())
        adapted_run(tmp_path, "s3://models/tiny")
        assert export(monkeypatch, tmp_path, tmp_path / "adapter", 1) == 0
        assert export(monkeypatch, tmp_path, tmp_path / "merged", 1, "--merged") == 0
    assert PeftConfig.from_pretrained(tmp_path / "adapter").base_model_name_or_path == "s3://models/tiny"
    before, merged = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "merged"))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(merged[name], before[name] + 1.0)  # twice the product of B [., 2] and A [2, .]: 2 * 2 * 0.25


def test_an_adapter_is_exported_as_peft_loads_it_or_merged(monkeypatch, capsys, run, tmp_path):
    from peft import PeftModel

    path = write_model(tmp_path / "model")
    words_tokenizer().save_pretrained(path)
    adapted_run(tmp_path, path)
    assert export(monkeypatch, tmp_path, tmp_path / "adapter", 1) == 0
    assert export(monkeypatch, tmp_path, tmp_path / "merged", 1, "--merged") == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter")("be kind").input_ids == [1, 14, 15]
    base = AutoModelForCausalLM.from_pretrained(path)
    before = base.model.layers[0].self_attn.q_proj.weight.detach().clone()
    with_peft = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    merged = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").named_parameters())
    assert all(torch.allclose(p, merged[name], atol=1e-6) for name, p in with_peft.named_parameters())
    # 4 / 2 times the product of two matrices of 0.5 with two columns: 2 * 2 * 0.25
    assert torch.allclose(merged["model.layers.0.self_attn.q_proj.weight"], before + 1.0, atol=1e-6)
    assert export(monkeypatch, tmp_path, tmp_path / "out", 1, "--model", "critic") == 64
    assert "--model critic: its adapter goes with a head" in capsys.readouterr().err
    assert export(monkeypatch, run, tmp_path / "out", 4, "--merged") == 64
    assert "trains no adapter" in capsys.readouterr().err


def test_an_adapter_of_a_model_that_sees_comes_with_the_files_of_its_processor(monkeypatch, tmp_path):
    from peft import PeftModel

    path = write_vision_model(tmp_path / "model", "qwen2_5_vl")
    words_tokenizer().save_pretrained(path)
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2}
    kept = {"preprocessor_config.json": json.dumps(processor), "video_preprocessor_config.json": "{}"}
    for name, text in kept.items():
        (tmp_path / "model" / name).write_text(text)
    adapted_run(tmp_path, path, algorithm={"name": "GRPO"}, data=SHOWS)
    for out, options in (("adapter", ()), ("merged", ("--merged",))):
        assert export(monkeypatch, tmp_path, tmp_path / out, 1, *options) == 0
        assert {name: (tmp_path / out / name).read_text() for name in kept} == kept
    base = AutoModelForImageTextToText.from_pretrained(path)
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    before = base.get_parameter(name).detach().clone()
    with_peft = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    merged = dict(AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").named_parameters())
    assert all(torch.allclose(p, merged[name], atol=1e-6) for name, p in with_peft.named_parameters())
    assert torch.allclose(merged[name], before + 1.0, atol=1e-6)
