"""What an engine is asked when it starts, and what is refused; with ours in the place of vLLM."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from rljob_worker.batch import Column
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.models.policy_by_layers import LayeredPass, PolicyByLayers
from rljob_worker.engines.rollout.requests import EndedRequests
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vllm.weights.reload_check import Probe, ReferenceAnswer, require_faithful
from rljob_worker.engines.router import routers
from rljob_worker.engines.tests.builders import END, write_config
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
LONGEST = 64
SHARP = {"initializer_range": 0.15}
"""Weights large enough for log-probs to depend on them."""


def policy_of(path: str, seed: int = 0) -> PreTrainedModel:
    return random_policy(path, torch.float32, seed)


class Forgetful(TransformersRollout):
    """Its decoding is not what it says of the same tokens in a prompt."""

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        ended = super().advance(most_steps)
        values = ended.log_probs.values.copy()
        values[ended.log_probs.lengths.cumsum()[ended.log_probs.lengths > 1] - 1] -= 0.5
        return replace(ended, log_probs=Column(values, ended.log_probs.offsets, ended.log_probs.dtype))


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_an_engine_with_the_weights_of_the_policy_passes_and_one_with_others_is_refused(
    tmp_path: Path, kind: str
) -> None:
    path = write_config(tmp_path, kind, **SHARP)
    engine = TransformersRollout(policy_of(path), CPU, (END,))
    require_faithful(engine, policy_of(path), "float32", LONGEST)
    with pytest.raises(InvalidJob, match="log-probs of a probe differ by .* from those of transformers"):
        require_faithful(engine, policy_of(path, seed=1), "float32", LONGEST)


def test_one_expert_with_other_weights_is_seen(tmp_path: Path) -> None:
    path = write_config(tmp_path, "qwen3_moe", num_experts=16, num_experts_per_tok=2, **SHARP)
    changed = policy_of(path)
    with torch.no_grad():
        changed.get_parameter("model.layers.1.mlp.experts.down_proj")[11].neg_()
    with pytest.raises(InvalidJob, match="log-probs of a probe differ"):
        require_faithful(TransformersRollout(changed, CPU, (END,)), policy_of(path), "float32", LONGEST)


def test_a_token_that_is_decoded_as_it_is_not_computed_in_a_prompt_is_seen(tmp_path: Path) -> None:
    path = write_config(tmp_path, **SHARP)
    with pytest.raises(InvalidJob, match="log-probs of a probe differ by 0.5"):
        require_faithful(Forgetful(policy_of(path), CPU, ()), policy_of(path), "float32", LONGEST)


def test_a_prompt_never_goes_on_with_a_token_that_stands_for_a_picture() -> None:
    prompts, responses = Column.ragged([[7, 8]] * 4), Column.ragged([[1, 60, 2], [1, 2, 60], [60, 61, 1], [5]])
    longer, places = Probe(prompts, not_text=(60, 61)).behind(responses)
    assert [row.tolist() for row in longer.prompts.to_list()] == [[7, 8, 1], [7, 8, 1, 2], [7, 8], [7, 8]]
    assert places.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize(("experts", "chosen", "prompts"), [(128, 8, 128), (16, 2, 64), (4, 2, 16), (0, 0, 16)])
def test_prompts_are_as_many_as_send_tokens_to_all_experts(
    tmp_path: Path, experts: int, chosen: int, prompts: int
) -> None:
    more = {"num_experts": experts, "num_experts_per_tok": chosen} if experts else {}
    policy = PolicyByLayers.random(
        write_config(tmp_path, "qwen3_moe" if experts else "qwen3", **more), torch.float32, 0
    )
    assert Probe.of(policy.model.config, LONGEST, None).prompts.num_rows == prompts


def test_experts_that_the_probe_does_not_reach_are_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Layer by layer as over the whole model."""
    path = write_config(tmp_path, "qwen3_moe", **SHARP)
    whole, policy = policy_of(path), PolicyByLayers.random(path, torch.float32, 0)
    probe = Probe.of(whole.config, LONGEST, None)
    beside = LayeredPass(ReferenceAnswer(probe))
    for _ in policy.tensors(beside):
        pass
    assert beside.result is not None and torch.equal(beside.result, ReferenceAnswer(probe)(whole))
    assert caplog.messages == []
    with torch.no_grad():
        routers(whole)[1].weight.zero_()  # all experts are as likely, and always the same two are taken
    with caplog.at_level(logging.WARNING):
        ReferenceAnswer(probe)(whole)
    (said,) = caplog.messages
    assert "says nothing of 4 of 12 experts of Qwen3MoeForCausalLM" in said
