"""What the plan counts of a slice, beside the parts of real tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rljob_api.memory.model_shape import FAMILIES, parse_shape
from rljob_api.memory.weight_slices import WeightSlices, slice_parameters
from rljob_worker.engines.models import checkpoint_tensors
from rljob_worker.engines.tests.builders import CONFIGS


def a_model(family, heads, key_heads, words):
    """Its config, and a model without numbers. Words are enough for biases, which the plan does not cut, to be few."""
    config = CONFIGS[family]()
    names = {"vocab_size": words, "num_attention_heads": heads}
    if family != "gpt2":
        names |= {"num_key_value_heads": key_heads, "hidden_size": 8 * heads, "intermediate_size": 16 * heads}
    else:
        names |= {"hidden_size": 8 * heads}
    for name, value in names.items():
        setattr(config, name, value)
    with torch.device("meta"):
        return config, AutoModelForCausalLM.from_config(config)


def kept(model, slices, rank):
    tensors = checkpoint_tensors(model.named_parameters())
    return sum(torch.Size(slices.part(name, item.shape, rank).shape(item.shape)).numel() for name, item in tensors)


@given(
    heads=st.sampled_from([8, 16]),
    key_heads=st.sampled_from([2, 4, 8]),
    words=st.integers(100, 2000),
    tensor=st.sampled_from([1, 2, 4, 8]),
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_counts_what_the_rank_with_most_keeps(family, heads, key_heads, words, tensor):
    config, model = a_model(family, heads, key_heads, words)
    shape = parse_shape(config.to_dict())
    slices = WeightSlices.of(shape, tensor)
    most = max(kept(model, slices, rank) for rank in range(tensor))
    # of biases that are cut the plan counts all
    assert slice_parameters(shape, tensor) == pytest.approx(most, rel=0.1 if shape.family.mlp_bias else 0)
