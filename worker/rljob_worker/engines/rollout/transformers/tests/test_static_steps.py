"""Steps of static shape, as a device would record them: the same tokens as steps of any shape."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.transformers.static_steps import ColumnMasks, Step, can_record, padded_size
from rljob_worker.engines.rollout.transformers.tests.test_requests import ROWS, all_of, asked, one_by_one
from rljob_worker.engines.tests.builders import END, VOCABULARY, write_config
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")


class Recorder:
    """Stands in for a device: gives steps as they are, which know their memory from now on, and counts them."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def __call__(self, step: Step) -> Step:
        self.num_recorded += 1
        return step


def engine_of(recorder: Recorder | None, room: int = 10**6, kind: str = "qwen3") -> TransformersRollout:
    """room: tokens in the cache; two layers of two heads of 8 numbers of 8 bytes, twice."""
    with tempfile.TemporaryDirectory() as directory:
        policy = random_policy(write_config(Path(directory), kind), torch.float64, 0)
    return TransformersRollout(policy, CPU, (END,), 1.0, lambda: room * 512, record=recorder)


@pytest.mark.parametrize(
    ("kind", "device", "recorded"), [("qwen3", "cuda", True), ("qwen3", "cpu", False), ("qwen3_moe", "cuda", False)]
)
def test_steps_of_dense_models_are_recorded_on_cuda(tmp_path: Path, kind: str, device: str, recorded: bool) -> None:
    policy = random_policy(write_config(tmp_path, kind), torch.float32, 0)
    assert can_record(policy, torch.device(device)) is recorded


@pytest.mark.parametrize(
    ("needed", "least", "most", "size"),
    [(1, 1, 12, 1), (5, 1, 12, 8), (9, 1, 12, 12), (3, 256, 300, 256), (3, 8, 6, 6)],
)
def test_sizes_are_few(needed: int, least: int, most: int, size: int) -> None:
    assert padded_size(needed, least, most) == size


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 5), st.sampled_from([None, 1, 2, 3]))
def test_a_row_looks_from_its_start_to_the_last_column_and_no_further_back_than_its_window(
    starts: list[int], steps: int, window: int | None
) -> None:
    early, late = (ColumnMasks(5, 16, torch.float64, CPU) for _ in range(2))
    early.of(window)
    for masks in (early, late):
        masks.refill(np.array(starts), 7)
        for column in range(7, 7 + steps):
            masks.open(column)
    last = 6 + steps
    seen = [[row < len(starts) and starts[row] <= c <= last for c in range(16)] for row in range(5)]
    if window is not None:
        seen = [[ok and c > last - window for c, ok in enumerate(row)] for row in seen]
    for masks in (early, late):  # one that was there before the steps, one that is asked for after them
        assert (masks.of(window)[:, 0, 0] == 0).tolist() == seen


@settings(max_examples=5)
@given(
    waves=st.permutations(range(ROWS)).flatmap(
        lambda rows: st.lists(st.integers(1, ROWS - 1), max_size=2, unique=True).map(
            lambda cuts: [part.tolist() for part in np.split(np.array(rows), sorted(cuts))]
        )
    ),
    room=st.sampled_from([84, 200, 10**6]),
    reloads=st.booleans(),
)
def test_rows_get_what_they_get_alone(waves: list[list[int]], room: int, reloads: bool) -> None:
    recorder = Recorder()
    engine, result = engine_of(recorder, room), {}
    same = [(name, tensor.clone()) for name, tensor in engine.model.named_parameters()]
    for wave in waves:
        engine.submit(asked(wave))
        if reloads:
            engine.load_weights(same, version=0)
        result |= all_of(engine)
        engine.sleep("Cache")
    assert result == one_by_one() and recorder.num_recorded


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt2"])
def test_windows_and_caps_are_those_of_the_model(kind: str) -> None:
    prompts = [np.arange(2, 2 + length) % VOCABULARY for length in (3, 11, 20)]
    result = []
    for recorder in (None, Recorder()):
        responses = generate(engine_of(recorder, kind=kind), prompts, Sampling(seed=1), np.arange(6), 2, 24)
        result.append(responses)
    assert result[0].response_ids.values.tolist() == result[1].response_ids.values.tolist()
    np.testing.assert_allclose(result[0].log_probs.values, result[1].log_probs.values, atol=1e-6)


def test_a_long_generation_records_few_steps() -> None:
    recorder = Recorder()
    engine = engine_of(recorder)
    generate(engine, [np.arange(2, 12)], Sampling(seed=2), np.arange(9), 9, 240)
    # of 9 rows 9, 8, 4, 2 and 1; of columns 256, and what was reserved at first and after it was full
    assert recorder.num_recorded <= 5 * 3


def test_steps_of_a_model_with_experts_are_not_recorded() -> None:
    with pytest.raises(InvalidJob, match="enforceEager: false: steps of a model with experts are not recorded"):
        engine_of(Recorder(), kind="qwen3_moe")
