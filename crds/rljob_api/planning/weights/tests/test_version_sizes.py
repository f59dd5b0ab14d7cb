"""Bytes of the versions that exist at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.planning.costs.timeline import with_staleness
from rljob_api.planning.tests.configs import DENSE
from rljob_api.planning.weights.version_sizes import VersionSizes, version_sizes
from rljob_api.tests.builders import TWO_GROUPS, TWO_POLICIES, dag, make_plan, pipeline

GI = 1 << 30
LARGE: dict[str, Any] = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "tie_word_embeddings": False,
}  # fmt: skip
"""Qwen3-235B-A22B."""


def shape_of(config: dict[str, Any]) -> ModelShape:
    shape = parse_shape(config)
    assert shape is not None
    return shape


def sizes_of(staleness: int, shape: ModelShape | None, *overrides: str) -> list[VersionSizes]:
    plan = make_plan(*TWO_GROUPS, "dataBuffer.memory=1Ti", f"rollout.maxStaleness={staleness}", *overrides)
    return list(version_sizes(plan, {} if shape is None else {"models/tiny": shape}))


def test_a_checkpoint_of_235_billion_parameters_keeps_940_gigabytes():
    # S = 2: two versions of 235e9 parameters of 2 bytes
    precision = "training.precision=BFloat16"
    (sizes,) = sizes_of(2, shape_of(LARGE), precision)
    assert sizes.num_kept == 2 and sizes.kept_bytes is not None
    assert round(sizes.kept_bytes / 1e9) == 940
    # 6 versions exist at once; two training hosts of one source have half of each in slots of 64 MiB, and at most a
    # bucket of as much more
    assert (sizes.num_stored, sizes.group) == (6, "train")
    assert sizes.stored_bytes is not None
    more = sizes.stored_bytes - 3 * sizes.kept_bytes / 2
    assert 6 * (64 << 20) <= more < 6 * (128 << 20)
    # an eighth of 1 TiB, in slots of 64 MiB of one source
    assert sizes.room == 128 * GI
    (sizes,) = sizes_of(2, shape_of(LARGE), precision, "checkpoint.versions=Redraw")
    assert (sizes.num_kept, sizes.kept_bytes, sizes.num_stored) == (0, 0, 6)


@pytest.mark.parametrize(("precision", "size"), [("Float32", 4), ("BFloat16", 2), ("Float64", 8)])
def test_a_version_is_in_the_precision_of_the_job(precision, size):
    shape = shape_of(DENSE)
    (sizes,) = sizes_of(1, shape, f"training.precision={precision}")
    assert (sizes.model_bytes, sizes.kept_bytes) == (size * shape.parameters, size * shape.parameters)


def test_without_a_config_versions_are_counted_and_their_bytes_are_not():
    (sizes,) = sizes_of(3, None)
    assert (sizes.num_kept, sizes.num_stored) == (3, 8)
    assert sizes.model_bytes is sizes.kept_bytes is sizes.stored_bytes is None


def test_one_version_at_a_time_is_no_matter():
    assert sizes_of(0, shape_of(DENSE)) == []
    assert list(version_sizes(make_plan(), {})) == []


def test_every_policy_has_versions_of_its_own():
    left, right = (
        tuple(f"{stage}, group: {'rollout' if 'Rollout' in stage else 'train'}" for stage in pipeline(policy))
        for policy in ("left", "right")
    )
    plan = with_staleness(make_plan(*TWO_GROUPS, *TWO_POLICIES, dag(*left, *right), "dataBuffer.memory=1Ti"), 1)
    shape = shape_of(DENSE)
    first, second = version_sizes(plan, {"models/left": shape})
    assert (first.model, second.model) == ("left", "right")
    assert first.kept_bytes == 4 * shape.parameters and second.kept_bytes is None
    assert replace(first, model="right", model_bytes=None, stored_bytes=None) == second
