"""One rank: what an update does, what is written and read back."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_worker.batch import Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.checkpoint.shard_index import merge_indexes
from rljob_worker.engines.fsdp.sharding import layer_units
from rljob_worker.engines.micro_batch import response_columns
from rljob_worker.engines.models import (
    WeightFiles,
    decoder_layers,
    empty_value_model,
    load_policy,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.tests.builders import PolicyGradient, ValueRegression, a_batch, export_of, save, write_config
from rljob_worker.engines.tests.deterministic_job import STRICT, WARNS, NotedMode, deterministic_job, mode
from rljob_worker.errors import BadData, InvalidJob, StorageError

CPU = torch.device("cpu")
SETTINGS = TrainSettings(temperature=0.8, precision="Float64", learning_rate=1e-2, total_steps=10, max_grad_norm=0.5)


def policy(directory: Path, **changes: object) -> FSDPEngine:
    settings = TrainSettings(**{**_fields(SETTINGS), **changes})
    return FSDPEngine(random_policy(write_config(directory), settings.master_dtype, 0), settings, CPU)


def critic(directory: Path, **changes: object) -> FSDPEngine:
    settings = TrainSettings(**{**_fields(SETTINGS), **changes})
    return FSDPEngine(random_value_model(write_config(directory), settings.master_dtype, 0), settings, CPU)


def _fields(settings: TrainSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def exported_critic(directory: Path) -> FSDPEngine:
    model = empty_value_model(str(directory), torch.float64)
    return FSDPEngine(model, SETTINGS, CPU, weights=WeightFiles.find(str(directory)))


def load_weights_of(engine: FSDPEngine, directory: Path) -> torch.nn.Module:
    """The model as a reference and a rollout engine hold it: kept in the precision of the job."""
    export_of(engine, directory / "of-engine")
    return load_policy(str(directory / "of-engine"), torch.bfloat16, CPU)


def weights_of(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=engine.settings.master_dtype)}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def test_an_update_is_the_same_for_any_micro_batch_split(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3, 0, 7, 2, 8])
    whole, split = policy(tmp_path), policy(tmp_path, tokens_per_micro_batch=12)
    for _ in range(3):
        one, many = whole.update(batch, PolicyGradient()), split.update(batch, PolicyGradient())
        assert many["update/micro_batches"].value > one["update/micro_batches"].value == 1
        for name in ("update/loss", "update/gradient_norm", "entropy"):
            assert many[name].value == pytest.approx(one[name].value, abs=1e-10), name
    assert largest_difference(weights_of(whole), weights_of(split)) < 1e-10


def test_activation_checkpointing_changes_no_number(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3])
    plain, recomputing = policy(tmp_path), policy(tmp_path, activation_checkpointing=True)
    for engine in (plain, recomputing):
        engine.update(batch, PolicyGradient())
    assert largest_difference(weights_of(plain), weights_of(recomputing)) == 0


@pytest.mark.parametrize("engine, objective", [(policy, PolicyGradient()), (critic, ValueRegression())])
@pytest.mark.parametrize("recomputes", [False, True])
def test_backward_passes_of_a_deterministic_job_are_strict_and_forward_passes_are_not(
    tmp_path: Path, engine: Any, objective: Any, recomputes: bool
) -> None:
    trained, noted = engine(tmp_path, activation_checkpointing=recomputes), list[tuple[str, str]]()
    for layer in decoder_layers(trained.model):
        layer.self_attn.register_forward_hook(
            lambda _module, _inputs, output: (NotedMode.apply(output[0], noted), *output[1:])
        )
    with deterministic_job():
        trained.update(a_batch([3, 1]), objective)
        assert mode() == WARNS
    assert set(noted) == {("forward", WARNS), ("backward", STRICT)}
    assert noted.count(("forward", WARNS)) == (2 if recomputes else 1) * noted.count(("backward", STRICT)) > 0


def test_gradients_are_clipped_once_by_the_global_norm(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3])
    free = policy(tmp_path, max_grad_norm=1e9)
    norm = free.update(batch, PolicyGradient())["update/gradient_norm"].value
    gradients = {}
    clipped = policy(tmp_path, max_grad_norm=norm / 4, tokens_per_micro_batch=12)
    assert clipped.optimizer is not None
    keep = clipped.optimizer.clear
    clipped.optimizer.clear = lambda: (  # type: ignore[method-assign]
        gradients.update({name: p.grad.clone() for name, p in clipped.model.named_parameters()}),
        keep(),
    )
    assert clipped.update(batch, PolicyGradient())["update/gradient_norm"].value == pytest.approx(norm, abs=1e-10)
    total = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    assert float(total) == pytest.approx(norm / 4, rel=1e-9)


def test_a_gradient_that_is_not_finite_skips_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch = a_batch([3, 2])
    advantages = batch["advantages"].values.copy()
    advantages[0] = np.nan
    broken = batch.with_columns({"advantages": Column.from_lengths(advantages, [3, 2])})
    engine = policy(tmp_path)
    before = weights_of(engine)
    metrics = engine.update(broken, PolicyGradient())
    assert metrics["update/skipped_total"].value == 1
    assert largest_difference(before, weights_of(engine)) == 0
    parameters = dict(engine.model.named_parameters())
    of_all = f"gradients of {len(parameters)} of {len(parameters)} parameters are not finite"
    assert f"optimizer step 1 is skipped: {of_all}" in caplog.text
    caplog.clear()
    assert engine.update(batch, PolicyGradient())["update/skipped_total"].value == 0
    assert largest_difference(before, weights_of(engine)) > 0
    assert not caplog.records


def test_parameters_whose_gradients_are_not_finite_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = policy(tmp_path)
    parameters = dict(engine.model.named_parameters())
    broken = ["model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    for name in broken:
        parameters[name].register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([3]), torch.inf))
    assert engine.update(a_batch([3, 2]), PolicyGradient())["update/skipped_total"].value == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"gradients of 2 of {len(parameters)} parameters" in line and line.endswith(f"that of {broken[1]}")


def test_log_probs_are_what_the_update_sees(tmp_path: Path) -> None:
    batch = a_batch([5, 0, 9, 3])
    engine = policy(tmp_path, tokens_per_micro_batch=12)
    column = engine.log_probs(batch)
    assert column.dtype == "float32"
    assert column.lengths.tolist() == [5, 0, 9, 3]
    seen = []

    class Watching(PolicyGradient):
        def __call__(self, tokens, counts):  # type: ignore[no-untyped-def]
            seen.append(tokens.log_probs.detach().float().numpy())
            return super().__call__(tokens, counts)

    engine.update(batch, Watching())
    assert np.array_equal(np.concatenate(seen), column.values)


def test_actions_of_some_rows_are_where_their_mask_is_not_zero() -> None:
    # responses of 3, 2 and 4 tokens: of the last and the first, tokens 0 to 3 and 4 to 6
    mask = Column.ragged([[0, 1, 1], [1, 1], [1, 0, 0, 2]], "uint8")
    batch, like = a_batch([3, 2, 4]).with_columns({"mask": mask}), torch.zeros((), dtype=torch.float64)
    rows = np.array([2, 0])
    columns, actions = response_columns(batch, ("advantages", "mask"), rows, like, "mask")
    assert columns["mask"].tolist() == [1, 0, 0, 2, 0, 1, 1] and actions.tolist() == [0, 3, 5, 6]
    assert response_columns(batch, (), rows, like)[1].tolist() == list(range(7))


def test_a_batch_without_rows_scores_nothing(tmp_path: Path) -> None:
    empty = a_batch([4, 4]).take([])
    engine = policy(tmp_path)
    assert engine.log_probs(empty).num_rows == 0
    assert engine.update(empty, PolicyGradient())["update/gradient_norm"].value == 0


def test_a_per_token_column_of_other_lengths_is_bad_data(tmp_path: Path) -> None:
    batch = a_batch([3, 2]).with_columns({"advantages": Column.ragged([[1.0], [2.0]], "float64")})
    with pytest.raises(BadData, match="advantages"):
        policy(tmp_path).update(batch, PolicyGradient())


def test_a_new_critic_values_every_state_at_zero_whatever_the_temperature(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3])
    engine = critic(tmp_path)
    assert not engine.values(batch).values.any()
    for _ in range(3):
        engine.update(batch, ValueRegression())
    cold = critic(tmp_path, temperature=0.1)
    cold.model.load_state_dict(engine.model.state_dict())
    assert engine.values(batch).values.any()
    assert np.array_equal(engine.values(batch).values, cold.values(batch).values)


def test_bfloat16_trains_float32_weights(tmp_path: Path) -> None:
    engine = policy(tmp_path, precision="BFloat16")
    batch = a_batch([5, 1, 9, 3])
    before = weights_of(engine)
    assert {tensor.dtype for tensor in before.values()} == {torch.float32}
    exact = policy(tmp_path, precision="Float32")
    np.testing.assert_allclose(engine.log_probs(batch).values, exact.log_probs(batch).values, atol=0.05)
    assert engine.update(batch, PolicyGradient())["update/skipped_total"].value == 0
    assert largest_difference(before, weights_of(engine)) > 0


def test_in_bfloat16_an_actor_is_its_own_reference_bit_for_bit(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3])
    actor = policy(tmp_path, precision="BFloat16")
    reference = FSDPEngine(load_weights_of(actor, tmp_path), TrainSettings(temperature=0.8, trainable=False), CPU)
    assert np.array_equal(actor.log_probs(batch).values, reference.log_probs(batch).values)


def test_a_copy_is_of_the_moment_in_which_it_was_taken(tmp_path: Path) -> None:
    engine, batch = policy(tmp_path / "model", learning_rate=0.1), a_batch([3, 5])
    engine.update(batch, PolicyGradient())
    before, shards = engine.log_probs(batch).values, engine.copy_shards()
    engine.update(batch, PolicyGradient())
    assert np.abs(engine.log_probs(batch).values - before).max() > 1e-3
    shards.write(tmp_path / "checkpoint")
    merge_indexes(tmp_path / "checkpoint")
    engine.load(tmp_path / "checkpoint")
    assert np.array_equal(engine.log_probs(batch).values, before)


@pytest.mark.parametrize("build", [policy, critic])
def test_load_goes_on_exactly_where_save_was(tmp_path: Path, build) -> None:  # type: ignore[no-untyped-def]
    batch = a_batch([5, 1, 9, 3])
    objective = PolicyGradient() if build is policy else ValueRegression()
    straight = build(tmp_path / "model", schedule="Cosine", warmup_steps=2)
    straight.update(batch, objective)
    save(straight, tmp_path / "checkpoint")
    restored = build(tmp_path / "model", schedule="Cosine", warmup_steps=2)
    restored.load(tmp_path / "checkpoint")
    assert straight.update(batch, objective)["update/loss"] == restored.update(batch, objective)["update/loss"]
    assert largest_difference(weights_of(straight), weights_of(restored)) == 0


def test_the_first_step_is_the_first_of_the_schedule(tmp_path: Path) -> None:
    engine, batch = policy(tmp_path / "model", learning_rate=0.1, warmup_steps=2), a_batch([3, 5])
    rates = [engine.update(batch, PolicyGradient())["update/learning_rate"].value for _ in range(3)]
    assert rates == pytest.approx([0.05, 0.1, 0.1])


def test_load_of_what_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    engine = policy(tmp_path / "model")
    with pytest.raises(StorageError, match="no .metadata"):
        engine.load(tmp_path / "nowhere")
    save(engine, tmp_path / "checkpoint")
    next((tmp_path / "checkpoint").glob("*.distcp")).unlink()
    with pytest.raises(StorageError, match="it is damaged or of another model: .*distcp") as caught:
        engine.load(tmp_path / "checkpoint")
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize(
    ("kind", "change", "difference"),
    [
        ("gpt2", {}, "it holds 25 tensors that this job's model does not have, lm_head.weight among them"),
        # all that a model of fewer layers has is there
        ("qwen3", {"num_hidden_layers": 1}, "it holds 11 tensors .* model.layers.1.input_layernorm"),
        (
            "qwen3",
            {"num_hidden_layers": 3},
            "model has 11 tensors that it does not hold, model.layers.2.input_layernorm",
        ),
        ("qwen3", {"head_dim": 4}, r"self_attn.q_proj.weight is \[32, 32\] there and \[16, 32\] in this job"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_what_differs(
    tmp_path: Path, kind: str, change: dict[str, Any], difference: str, weights_only: bool
) -> None:
    save(policy(tmp_path / "model"), tmp_path / "checkpoint")
    path = write_config(tmp_path / "other", kind, **change)
    other = FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, CPU)
    with pytest.raises(InvalidJob, match=f"it is of another model: .*{difference}"):
        other.load(tmp_path / "checkpoint", weights_only=weights_only)


@contextmanager
def disk_with_room_for(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond `num_bytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_is_a_storage_error_with_the_place(tmp_path: Path) -> None:
    engine = policy(tmp_path / "model")
    save(engine, tmp_path / "checkpoint")
    export = partial(export_of, engine, checkpoint=tmp_path / "checkpoint")
    # config.json has hundreds of bytes, weights have thousands
    for index, num_bytes in enumerate((0, 5_000)):
        for write, words in ((engine.copy_shards().write, "checkpoint"), (export, "export to")):
            place = tmp_path / f"{words}-{index}"
            with (
                disk_with_room_for(num_bytes),
                pytest.raises(StorageError, match=f"{words} {place}: cannot be written"),
            ):
                write(place)


@pytest.mark.parametrize("tied", [False, True])
def test_an_export_is_a_model_directory_with_the_same_policy(tmp_path: Path, tied: bool) -> None:
    batch = a_batch([5, 1, 9, 3])
    path = write_config(tmp_path / "model", tie_word_embeddings=tied)
    engine = FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, CPU)
    engine.update(batch, PolicyGradient())
    export_of(engine, tmp_path / "exported")
    again = FSDPEngine(load_policy(str(tmp_path / "exported"), torch.float64, CPU), SETTINGS, CPU)
    assert np.array_equal(engine.log_probs(batch).values, again.log_probs(batch).values)
    names = [name for name, _ in engine.weights()]
    assert ("lm_head.weight" in names) != tied


@pytest.mark.parametrize("mode", [0o755, 0o750])
def test_whoever_may_read_the_directory_may_read_the_weights_that_were_exported(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "exported"
    directory.mkdir()
    directory.chmod(mode)
    export_of(critic(tmp_path / "model"), directory)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.glob("*.safetensors")}
    assert len(modes) == 2 and set(modes.values()) == {mode & 0o666}


def test_an_exported_critic_keeps_its_head(tmp_path: Path) -> None:
    batch = a_batch([5, 1, 9, 3])
    engine = critic(tmp_path / "model")
    engine.update(batch, ValueRegression())
    export_of(engine, tmp_path / "exported")
    again = exported_critic(tmp_path / "exported")
    assert np.array_equal(engine.values(batch).values, again.values(batch).values)


def test_layers_are_gathered_in_units_of_a_size() -> None:
    # four layers of 40 bytes and 20 more elsewhere
    layers = [torch.nn.Linear(5, 2, bias=False) for _ in range(4)]
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layers), "head": torch.nn.Linear(5, 1, bias=False)})
    assert list(decoder_layers(model)) == layers
    assert [len(unit) for unit in layer_units(model, layers, 0)] == [1, 1, 1, 1]
    assert [len(unit) for unit in layer_units(model, layers, 81)] == [3, 1]
    assert layer_units(model, layers, 181) == []
