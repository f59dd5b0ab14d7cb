"""From a planned job to live engines, and the mistakes people make with models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, T5Config

from rljob_api.planning.plan import Plan
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.models import ValueModel
from rljob_worker.engines.registry import build_rollout_engine, build_train_engine
from rljob_worker.engines.rollout.transformers import TransformersRollout, static_steps
from rljob_worker.engines.tests.builders import write_config, write_model
from rljob_worker.engines.train_builders import train_settings
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.documents import plan_of

CPU = torch.device("cpu")


def planned(model: str, **spec: Any) -> Plan:
    training = {"precision": "Float32", "learningRate": 0.5}
    return plan_of(
        **{"models": [{"name": "actor", "path": model, "initialise": "Random"}], "training": training, **spec}
    )


def test_every_engine_of_a_ppo_job_is_built(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path), algorithm={"name": "PPO", "critic": {"learningRate": 0.25}})
    train = {e.model: build_train_engine(made, e, CPU) for e in made.engines if e.kind == "Train"}
    assert set(train) == {"actor", "critic", "reference"}
    critic, actor = train["critic"], train["actor"]
    assert isinstance(critic, FSDPEngine) and isinstance(critic.model, ValueModel)
    assert critic.settings.learning_rate == 0.25
    assert isinstance(actor, FSDPEngine) and actor.settings.learning_rate == 0.5
    reference = train["reference"]
    assert isinstance(reference, FSDPEngine) and reference.optimizer is None
    # both start from the same random weights
    ours, theirs = dict(actor.model.named_parameters()), dict(reference.model.named_parameters())
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(critic.model.backbone.embed_tokens.weight, ours["model.embed_tokens.weight"])


def test_stops_of_a_job_are_checked_against_the_model_when_its_engine_is_built(tmp_path: Path) -> None:
    # a model of 48 tokens
    made = planned(write_config(tmp_path), rollout={"stopTokenIds": [0, 47, 48]})
    with pytest.raises(InvalidJob, match=r"rollout.stopTokenIds 48: the model at .* has tokens from 0 to 47"):
        build_rollout_engine(made, made.engine("rollout/actor"), CPU)
    words_tokenizer().save_pretrained(tmp_path)
    made = planned(str(tmp_path), rollout={"stop": ["a"]})
    with pytest.raises(InvalidJob, match=r"write rollout\.stopTokenIds in place of rollout\.stop"):
        build_rollout_engine(made, made.engine("rollout/actor"), CPU)


def test_a_copy_that_cannot_be_shared_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    pair = [{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}]
    rollout = {"engine": "VLLM", "parallelism": {"tensor": 2}}
    made = planned(write_config(tmp_path, intermediate_size=45), workerGroups=pair, rollout=rollout)
    with pytest.raises(InvalidJob, match=r"rollout.parallelism.tensor.*the MLP's 45 columns.*Write one of 1"):
        build_rollout_engine(made, made.engine("rollout/actor"), CPU)


@pytest.mark.parametrize(
    ("can_record", "options", "recorded"),
    [(True, {}, 1), (True, {"enforceEager": True}, 0), (False, {}, 0)],
)
def test_steps_are_recorded_where_they_can_be_unless_the_job_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, can_record: bool, options: dict[str, bool], recorded: int
) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr(static_steps, "can_record", lambda model, device: can_record)
    monkeypatch.setattr(static_steps, "CUDAGraphs", lambda device: devices.append(device) or (lambda step: step))
    made = planned(write_config(tmp_path), rollout={"engineOptions": options})
    build_rollout_engine(made, made.engine("rollout/actor"), CPU)
    assert devices == [CPU] * recorded


def test_a_rollout_engine_borrows_whole_weights_and_copies_sharded_ones(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path))
    actor = build_train_engine(made, made.engine("train/actor"), CPU)
    shared = build_rollout_engine(made, made.engine("rollout/actor"), CPU, actor)
    alone = build_rollout_engine(made, made.engine("rollout/actor"), CPU)
    assert isinstance(shared, TransformersRollout) and isinstance(alone, TransformersRollout)
    assert isinstance(actor, FSDPEngine)
    assert shared.model is actor.model
    assert alone.model is not actor.model
    mixed = planned(write_config(tmp_path), training={"precision": "BFloat16"})
    sharded = build_train_engine(mixed, mixed.engine("train/actor"), CPU)
    copied = build_rollout_engine(mixed, mixed.engine("rollout/actor"), CPU, sharded)
    assert isinstance(copied, TransformersRollout)
    assert next(copied.model.parameters()).dtype == torch.bfloat16
    copied.load_weights(sharded.weights(), version=3)
    weights = dict(sharded.weights())
    name, tensor = next(iter(copied.model.named_parameters()))
    assert torch.equal(tensor, weights[name].bfloat16())


def test_settings_follow_the_job(tmp_path: Path) -> None:
    made = planned(
        write_config(tmp_path),
        training={"miniBatchRows": 4, "warmupSteps": 3, "betas": [0.8, 0.9], "schedule": "Linear"},
        rollout={"temperature": 0.7},
        stop={"steps": 10},
    )
    settings = train_settings(made, made.engine("train/actor"))
    assert settings.temperature == 0.7
    assert settings.total_steps == 20  # 10 steps of 8 rows in mini-batches of 4
    assert (settings.warmup_steps, settings.betas, settings.schedule) == (3, (0.8, 0.9), "Linear")
    training = made.spec.training.model_copy(update={"patches_per_micro_batch": 64})
    sees = made.model_copy(update={"spec": made.spec.model_copy(update={"training": training})})
    assert train_settings(sees, sees.engine("train/actor")).patches_per_micro_batch == 64


def test_a_schedule_begins_with_the_steps_that_train_its_model(tmp_path: Path) -> None:
    critic = {"learningRate": 0.25, "warmupSteps": 4}
    made = planned(write_config(tmp_path), algorithm={"name": "PPO", "critic": critic}, stop={"steps": 10})
    steps = {e.model: train_settings(made, e).total_steps for e in made.engines if e.trainable}
    assert steps == {"actor": 6, "critic": 10}


def test_a_schedule_may_have_a_length_of_its_own(tmp_path: Path) -> None:
    training = {"schedule": "Linear", "scheduleSteps": 25}
    made = planned(write_config(tmp_path), training=training, stop={"steps": 10})
    assert [train_settings(made, engine).total_steps for engine in made.engines if engine.trainable] == [25]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda directory: None, "no such directory"),
        (lambda directory: directory.mkdir(), "no config.json"),
        (lambda directory: T5Config(d_model=8).save_pretrained(directory), "not a causal language model"),
        (lambda directory: _write(directory / "config.json", "{}"), "cannot read its config"),
    ],
)
def test_a_path_that_is_no_causal_model_is_named(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "model")
    made = planned(str(tmp_path / "model"))
    with pytest.raises(InvalidJob, match=message) as caught:
        build_train_engine(made, made.engine("train/actor"), CPU)
    assert str(tmp_path / "model") in str(caught.value)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)


def test_layers_without_keys_and_values_are_refused(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path, layer_types=["full_attention", "chunked_attention"]))
    with pytest.raises(InvalidJob, match="chunked_attention"):
        build_train_engine(made, made.engine("train/actor"), CPU)


def test_what_a_library_does_not_do_is_refused(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path))
    engine = made.engine("train/actor")
    with pytest.raises(InvalidJob, match="VLLM is not built yet; use FSDP or Megatron"):
        build_train_engine(made, engine.model_copy(update={"library": "VLLM"}), CPU)
    for build, name, axis, words in (
        (build_train_engine, "train/actor", "pp", "FSDP does not spread a model over a pipeline axis"),
        (build_rollout_engine, "rollout/actor", "tp", "the plan has tensor 3; set parallelism.tensor to 1"),
    ):
        engine = made.engine(name)
        with pytest.raises(InvalidJob, match=words):
            build(made, engine.model_copy(update={"mesh": engine.mesh.model_copy(update={axis: 3})}), CPU)


def test_heads_that_cannot_be_shared_are_refused_by_the_engine_too(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path))
    engine = made.engine("train/actor")
    with pytest.raises(InvalidJob, match=r"share the 4 attention heads and 2 key heads, .* Write one of 1, 2\."):
        build_train_engine(made, engine.model_copy(update={"mesh": engine.mesh.model_copy(update={"tp": 4})}), CPU)


def test_only_a_job_that_says_so_trains_random_weights(tmp_path: Path) -> None:
    made = planned(write_config(tmp_path), models=[{"name": "actor", "path": str(tmp_path)}])
    for name, build in (("train/actor", build_train_engine), ("rollout/actor", build_rollout_engine)):
        with pytest.raises(InvalidJob, match=r"no weights in it .* set models\[\].initialise: Random"):
            build(made, made.engine(name), CPU)


def test_engines_read_the_weights_of_the_path(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    made = planned(path, models=[{"name": "actor", "path": path}])
    expected = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    trained = build_train_engine(made, made.engine("train/actor"), CPU)
    generating = build_rollout_engine(made, made.engine("rollout/actor"), CPU)
    assert isinstance(trained, FSDPEngine) and isinstance(generating, TransformersRollout)
    for model in (trained.model, generating.model):
        assert all(torch.equal(p, dict(model.named_parameters())[name]) for name, p in expected.named_parameters())


def test_an_adapted_actor_trains_beside_its_weights_and_lends_none(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    spec = {"rank": 2, "targets": ["q_proj"]}
    made = planned(path, models=[{"name": "actor", "path": path, "adapter": spec}], training={"precision": "BFloat16"})
    actor = build_train_engine(made, made.engine("train/actor"), CPU)
    assert isinstance(actor, FSDPEngine) and actor.adapter is not None
    assert (actor.adapter.rank, actor.adapter.alpha) == (2, 4.0)  # twice the rank unless said
    dtypes = {parameter.requires_grad: parameter.dtype for parameter in actor.model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    rollout = build_rollout_engine(made, made.engine("rollout/actor"), CPU, actor)
    assert isinstance(rollout, TransformersRollout) and rollout.model is not actor.model
    rollout.load_weights(actor.weights(), version=1)
    expected = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    assert all(torch.equal(p, dict(rollout.model.named_parameters())[name]) for name, p in expected.named_parameters())
