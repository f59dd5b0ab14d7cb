"""What an update asks of a CUDA device, on one without numbers: no pass waits for an earlier one.

Backward passes are left out, and what follows them may wait: the optimizer reads the norm, and metrics are read once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.catalogue.algorithms import AGGREGATIONS, ALGORITHMS, CORRECTIONS, KL_ESTIMATORS, LOSSES
from rljob_worker.algorithms import policy_objective, value_objective
from rljob_worker.algorithms.advantages import no_reduce
from rljob_worker.algorithms.mismatch import TokenAges
from rljob_worker.algorithms.preparation import prepared, with_corrections, with_trajectory_columns
from rljob_worker.algorithms.tests.builders import algorithm, ragged_batch
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.settings import TrainSettings
from rljob_worker.engines.micro_batch import response_columns
from rljob_worker.engines.models import empty_policy, empty_value_model
from rljob_worker.engines.protocols import Objective, TokenBatch
from rljob_worker.engines.tests.builders import a_batch, write_config
from rljob_worker.engines.tests.fake_cuda import CUDA, Asked, engine_on_cuda, on_cuda, recorded

LENGTHS = [5, 1, 9, 3]
BF16, FP32 = torch.bfloat16, torch.float32
AGES = TokenAges(newest=3, oldest=2)


def rows_of_an_update() -> Batch:
    """Every column that some objective reads; trajectories of two rows."""
    tokens, more = a_batch(LENGTHS), ragged_batch(LENGTHS)
    columns = {name: more[name] for name in more.columns if name != "response_ids"}
    total = sum(LENGTHS)
    columns["loss_mask"] = Column.from_lengths((np.arange(total) % 3 > 0).astype(np.uint8), LENGTHS)
    columns["token_versions"] = Column.from_lengths(np.arange(total) % 4, LENGTHS)
    columns["row_weights"] = Column.fixed(np.array([1, 2, 1, 3]))
    return tokens.with_columns(columns)


BATCH = rows_of_an_update()


def judged_on_cuda(monkeypatch: pytest.MonkeyPatch, objective: Objective, batch: Batch) -> Asked:
    """What an objective asks for one micro-batch, the copy of its columns included."""
    counts, rows = objective.counts(batch), np.arange(len(batch))
    row = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(LENGTHS))
    with on_cuda(monkeypatch, torch.nn.Module()), recorded() as asked:
        outputs = [torch.empty(sum(LENGTHS), device=CUDA) for _ in range(4)]
        columns, actions = response_columns(batch, objective.columns, rows, like=outputs[0], mask=objective.mask)
        log_probs, entropy, values, full_kl = outputs
        on_device = torch.empty(row.shape, dtype=row.dtype, device=CUDA)
        full = full_kl if "full_kl" in objective.outputs else None
        loss, measured = objective(
            TokenBatch(log_probs, entropy, values, on_device, len(rows), columns, actions, full), counts
        )
    assert loss.device == CUDA and measured.on_device is not None
    return asked


def prepared_objective(fields: dict[str, Any], rows_per_trajectory: int = 1) -> tuple[Objective, Batch]:
    """With the columns that an update makes for it."""
    spec = algorithm(**{"kl": {"coefficient": 0.1}, **fields})
    batch, _ = with_corrections(BATCH, spec, rows_per_trajectory=rows_per_trajectory, ages=AGES)
    batch = with_trajectory_columns(batch, spec, rows_per_trajectory)
    batch = prepared(batch, spec, reduce=no_reduce, seed=3, rows_per_trajectory=rows_per_trajectory)
    made = set(batch.columns) - set(BATCH.columns) | ({"loss_mask"} if spec.correction else set())
    objective = policy_objective(spec, max_response_tokens=9, has_old_log_probs=True, made=made)
    return objective.reporting_mismatch(AGES), batch


COVARIANCE = {"covarianceFraction": 0.3, "covarianceLow": 0.0, "covarianceHigh": 9.0}


def loss_fields(name: str, **more: Any) -> dict[str, Any]:
    return {"loss": {"name": name, **(COVARIANCE if name.endswith("Cov") else {}), **more}}


OBJECTIVES: list[dict[str, Any]] = [
    *({"name": name} for name in ALGORITHMS),
    *(loss_fields(name, entropyCoefficient=0.1) for name in LOSSES),
    *({"kl": {"coefficient": 0.1, "estimator": name}} for name in KL_ESTIMATORS),
    *(loss_fields("PPOClip", aggregation=name) for name in AGGREGATIONS),
    *({"correction": {"method": name}} for name in CORRECTIONS),
    loss_fields("PPOClip", dualClip=3.0, ratio="Decision"),
    {"maskTruncated": True},
    {"sampling": {"resampling": {"method": "PFPPO"}}},
]


@pytest.mark.parametrize("rows_per_trajectory", [1, 2])
@pytest.mark.parametrize("fields", OBJECTIVES, ids=str)
def test_an_objective_waits_for_nothing_and_its_columns_go_in_one_copy(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], rows_per_trajectory: int
) -> None:
    asked = judged_on_cuda(monkeypatch, *prepared_objective(fields, rows_per_trajectory))
    assert asked.waits == [] and asked.copies == ["pinned"]


@pytest.mark.parametrize("sampling", [{}, {"resampling": {"method": "PFPPO"}}], ids=str)
def test_a_critics_objective_does_likewise(monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]) -> None:
    objective = value_objective(algorithm("PPO", sampling=sampling))
    asked = judged_on_cuda(monkeypatch, objective, BATCH)
    assert asked.waits == [] and asked.copies == ["pinned"]


def update_on_cuda(
    engine: FSDPEngine, objective: Objective, reference: FSDPEngine | None = None
) -> tuple[Asked, list[str], int]:
    """What an update asks until its last backward pass begins, for what the host waits behind it, and how many
    micro-batches there were."""
    with pytest.MonkeyPatch.context() as patch, torch.enable_grad():
        for _ in range(2):  # the first has what is made once in a process, too
            passes: list[int] = []
            with recorded() as asked:
                patch.setattr(torch.Tensor, "backward", lambda *_: passes.append(len(asked.waits)))  # noqa: B023
                engine.update(BATCH, objective, reference=reference)
    afterwards, asked.waits = asked.waits[passes[-1] :], asked.waits[: passes[-1]]
    return asked, afterwards, len(passes)


def settings(tokens: int, **changes: Any) -> TrainSettings:
    """precision: the weights' own, whatever that is."""
    return TrainSettings(precision="Float32", tokens_per_micro_batch=tokens, **changes)


def an_objective(fields: dict[str, Any]) -> Objective:
    """One whose counts are known: the host has no numbers in an `on_cuda` block, either."""
    objective, _ = prepared_objective(fields)
    counts = objective.counts(BATCH)
    objective.counts = lambda _: counts  # type: ignore[method-assign]
    return objective


# of experts in float32 torch reads on the host where the rows of each end: two products of each of two layers
PRODUCTS = ["_grouped_mm"] * 4


@pytest.mark.parametrize("tokens", [100, 14])
@pytest.mark.parametrize(
    ("family", "dtype", "waits"),
    [("qwen3", BF16, []), ("qwen3", FP32, []), ("qwen3_moe", BF16, []), ("qwen3_moe", FP32, PRODUCTS)],
    ids=str,
)
def test_an_update_waits_for_no_pass_and_copies_twice_for_each_micro_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, dtype: torch.dtype, waits: list[str], tokens: int
) -> None:
    objective, model = an_objective({"name": "GRPO"}), empty_policy(write_config(tmp_path, family), dtype)
    with on_cuda(monkeypatch, model):
        engine = engine_on_cuda(monkeypatch, model, settings(tokens))
        asked, _, num_runs = update_on_cuda(engine, objective)
    assert num_runs == (1 if tokens == 100 else 2)
    assert asked.waits == waits * num_runs
    assert asked.copies == ["pinned", "pinned"] * num_runs  # rows and columns


def test_a_pass_that_counts_the_load_of_experts_first_copies_rows_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objective, model = an_objective({"name": "GRPO"}), empty_policy(write_config(tmp_path, "qwen3_moe"), BF16)
    with on_cuda(monkeypatch, model):
        engine = engine_on_cuda(monkeypatch, model, settings(14, router_aux_loss_coefficient=0.1))
        asked, _, num_runs = update_on_cuda(engine, objective)
    assert asked.waits == [] and asked.copies == ["pinned"] * 3 * num_runs


def test_a_reference_inside_the_update_makes_nothing_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objective = an_objective({"kl": {"coefficient": 0.1, "estimator": "Full"}})
    path = write_config(tmp_path, "qwen3")
    model, compared = empty_policy(path, BF16), empty_policy(path, BF16)
    with on_cuda(monkeypatch, model), on_cuda(monkeypatch, compared):
        engine = engine_on_cuda(monkeypatch, model, settings(14))
        reference = engine_on_cuda(monkeypatch, compared, settings(14, trainable=False))
        asked, _, num_runs = update_on_cuda(engine, objective, reference)
    assert asked.waits == [] and asked.copies == ["pinned", "pinned"] * num_runs


def test_a_critic_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objective, model = value_objective(algorithm("PPO")), empty_value_model(write_config(tmp_path, "qwen3"), BF16)
    counts = objective.counts(BATCH)
    monkeypatch.setattr(objective, "counts", lambda _: counts)
    with on_cuda(monkeypatch, model):
        asked, _, num_runs = update_on_cuda(engine_on_cuda(monkeypatch, model, settings(14)), objective)
    assert asked.waits == [] and asked.copies == ["pinned", "pinned"] * num_runs


def test_what_an_update_waits_for_at_its_end_does_not_grow_with_its_micro_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objective, model = an_objective({"name": "GRPO"}), empty_policy(write_config(tmp_path, "qwen3"), BF16)
    with on_cuda(monkeypatch, model):
        ends = [update_on_cuda(engine_on_cuda(monkeypatch, model, settings(tokens)), objective) for tokens in (100, 14)]
    assert [num_runs for _, _, num_runs in ends] == [1, 2]
    # the loss and the metrics; here there are no gradients that have a norm
    assert [afterwards for _, afterwards, _ in ends] == [["_local_scalar_dense", "copy to the host"]] * 2
