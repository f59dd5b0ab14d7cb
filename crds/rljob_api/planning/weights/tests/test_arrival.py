"""How long weights take into the workers that generate, and what of it stops decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.loading.load import parse_job
from rljob_api.memory.weight_slices import slice_parameters
from rljob_api.planning.planner import plan
from rljob_api.planning.tests.configs import DENSE
from rljob_api.planning.weights.arrival import (
    CHUNK_SECONDS,
    LINK_SHARE,
    READER_SECONDS,
    TENSOR_SECONDS,
    weight_arrivals,
)
from rljob_api.planning.weights.tests.test_version_sizes import LARGE, shape_of

JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: large}
spec:
  models: [{name: actor, path: models/large}]
  data: {train: [{path: data/train.parquet}], batchSize: 512, maxPromptTokens: 2048}
  rewards: [{name: correct, run: "rljob_worker.rewards:math_answer", column: answer}]
  algorithm: {name: GRPO, groupSize: 8}
  workerGroups:
    - {name: rollout, replicas: 8, accelerator: {profile: nvidia-h100, count: 8}}
    - {name: train, replicas: 16, accelerator: {profile: nvidia-h100, count: 8}}
  training: {precision: BFloat16}
  rollout: {engine: VLLM, maxResponseTokens: 8192, parallelism: {tensor: 8}}
  dataBuffer: {memory: 64Gi}
  stop: {steps: 100}
"""
SHAPE = shape_of(LARGE)
WHOLE, SLICE = 2 * SHAPE.parameters, 2 * slice_parameters(SHAPE, 8)
CPU = ("workerGroups=[{name: rollout, accelerator: {count: 8}}, {name: train}]", "data.batchSize=8")


def arrival(*overrides):
    (result,) = weight_arrivals(plan(parse_job(JOB, overrides)), {"models/large": SHAPE}, DEFAULT)
    return result


def test_235_billion_parameters_are_an_eighth_for_each_of_eight_workers_and_take_seconds():
    """470 GB into a host with 8 links of 50 GB/s, of which weights have 0.6: 1.96 s. 59 GB at 40 GB/s: 1.5 s, and 94
    layers of 8 tensors, a router and 3 x 128 of experts: 0.7 s. Of 96 cores workers keep 8, and 32 threads take 1.2
    GB/s each: 12.2 s. 7,007 chunks of 64 MiB, for 8 workers each."""
    made = arrival()
    assert (made.group, made.worker_bytes, made.host_bytes) == ("rollout", SLICE, WHOLE)
    assert 470e9 < WHOLE < 471e9 and WHOLE / 8 < SLICE < 1.1 * WHOLE / 8
    assert made.seconds["links"] == pytest.approx(WHOLE / (8 * 50e9 * LINK_SHARE))
    assert made.seconds["threads"] == pytest.approx(WHOLE / (32 * 1.2e9))
    assert made.seconds["chunks"] == pytest.approx(7007 * (CHUNK_SECONDS + 8 * READER_SECONDS))
    assert made.loading_seconds == pytest.approx(SLICE / 40e9 + 94 * (8 + 1 + 3 * 128) * TENSOR_SECONDS)
    assert made.bound == "chunks" and made.staged is None and made.pause_seconds == made.network_seconds < 15


def limited_to(cores):
    template = f"{{spec: {{initContainers: [{{name: data-buffer, resources: {{limits: {{cpu: {cores}}}}}}}]}}}}"
    return arrival(
        f"workerGroups.0={{name: rollout, replicas: 8, accelerator: {{profile: nvidia-h100, count: 8}}, "
        f"template: {template}}}"
    )


def test_a_host_needs_38_cores_to_take_235_billion_parameters_in_15_seconds():
    """It takes 470 GB, 392 s of a core, and over 16 trees has 14 children, which take 14/16 of that: 171 s."""
    made = limited_to(38)
    assert made.seconds["cores"] == pytest.approx(WHOLE / 38 * (1 / 1.2e9 + 14 / 16 / 2.4e9))
    assert made.seconds["cores"] < 15 < limited_to(37).seconds["cores"]
    assert limited_to("500m").network_seconds == pytest.approx(38 / 0.5 * made.seconds["cores"])
    assert limited_to(0).network_seconds == arrival().network_seconds, "a limit of nothing is none"


def test_what_comes_from_one_parent_comes_over_its_connections():
    """All of one host that trains, over 8 connections of 1.2 GB/s."""
    one = "workerGroups.1={name: train, replicas: 1, accelerator: {profile: nvidia-h100, count: 8}}"
    alone = "workerGroups.0={name: rollout, replicas: 1, accelerator: {profile: nvidia-h100, count: 8}}"
    assert arrival(one, alone).seconds["parent"] == pytest.approx(WHOLE / (8 * 1.2e9))


def test_pods_of_an_elastic_group_have_one_parent_and_two_children_of_all_sources():
    elastic = (
        "workerGroups.0={name: rollout, elastic: {min: 1, max: 8}, accelerator: {profile: nvidia-h100, count: 8}}",
        "rollout.leaseRows=8", "rollout.maxStaleness=1",
    )  # fmt: skip
    made = arrival(*elastic)
    assert made.seconds["parent"] == pytest.approx(WHOLE / (8 * 1.2e9))
    assert made.seconds["cores"] == pytest.approx(WHOLE / 88 * (1 / 1.2e9 + 2 / 2.4e9))


def test_a_host_that_sends_all_alone_may_be_the_slowest():
    """One trainer of one link sends all of it."""
    one = "workerGroups.1={name: train, replicas: 1, accelerator: {profile: nvidia-h100, count: 1}}"
    made = arrival(one)
    assert made.seconds["links"] == pytest.approx(WHOLE / (50e9 * LINK_SHARE))
    assert made.seconds["cores"] == pytest.approx(WHOLE / (11 * 2.4e9))


def test_what_hosts_have_room_for_comes_while_the_version_before_decodes():
    """Weights have an eighth of 4 TiB, which holds 470 GB, and of 1 TiB, 137 GB."""
    made = arrival("rollout.maxStaleness=1", "dataBuffer.memory=4Ti")
    assert made.staged == "Host" and made.pause_seconds == made.loading_seconds
    assert arrival("rollout.maxStaleness=1", "dataBuffer.memory=1Ti").staged is None


def test_where_generation_waits_for_every_version_nothing_comes_ahead():
    """Also of a model that four slots of 16 MiB of each source would hold."""
    for staleness in (0, 1):
        made = plan(parse_job(JOB, (f"rollout.maxStaleness={staleness}",)))
        (small,) = weight_arrivals(made, {"models/large": shape_of(DENSE)}, DEFAULT)
        assert small.staged == ("Host" if staleness else None)


def test_by_broadcasts_a_host_takes_the_slices_of_its_workers():
    made = arrival("weightSync.transport=Collective")
    assert (made.worker_bytes, made.host_bytes, made.staged) == (SLICE, 8 * SLICE, None)
    assert made.bound == "loading" and set(made.seconds) == {"links", "loading"}


def test_links_of_hosts_without_accelerators_are_not_known():
    made = arrival(*CPU)
    assert (made.network_seconds, made.loading_seconds, made.pause_seconds, made.bound) == (None,) * 4
    assert made.worker_bytes == SLICE


def test_models_without_a_config_at_hand_and_those_that_stay_in_their_workers_are_left_out():
    assert list(weight_arrivals(plan(parse_job(JOB, ())), {}, DEFAULT)) == []
    together = "workerGroups=[{name: train, replicas: 8, accelerator: {profile: nvidia-h100, count: 8}}]"
    made = plan(parse_job(JOB, (together,)))
    assert list(weight_arrivals(made, {"models/large": replace(SHAPE)}, DEFAULT)) == []
