"""Where shipped models lie: on devices that are not here, so that tensors are followed without being computed."""

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, LlamaConfig

from rljob_api.catalogue.services import RewardModelOptions
from rljob_worker.errors import InvalidJob
from rljob_worker.services.models.classifier import head_of
from rljob_worker.services.models.embedding import mean_hidden
from rljob_worker.services.models.judge import continued
from rljob_worker.services.models.loading import load_model, padded
from rljob_worker.services.placement import ON_CPU, ModelPlacement

OPTIONS = RewardModelOptions(path="models/good")
ONE, TWO = ModelPlacement("cuda", 1, "nvidia"), ModelPlacement("cuda", 2, "nvidia")
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
TINY = LlamaConfig(vocab_size=50, num_hidden_layers=2, num_labels=1, pad_token_id=0, **SHAPE)


class Family:
    """Loads a model that notes where it is put."""

    __name__ = "AutoModelForX"

    def __init__(self, *layers):
        self.asked, self.moved = {}, []
        self.hf_device_map = {f"layer {i}": place for i, place in enumerate(layers)}

    def from_pretrained(self, path, **asked):
        self.asked = asked
        return self, {"missing_keys": []}

    def to(self, device):
        self.moved.append(device)
        return self

    def eval(self):
        return self


@pytest.mark.parametrize(("place", "device"), [(ON_CPU, "cpu"), (ONE, "cuda"), (ModelPlacement("npu", 1), "npu")])
def test_a_model_is_put_where_its_copy_lies(place, device):
    family = Family()
    load_model(family, OPTIONS, place, lambda device: 1)
    assert family.moved == [device] and "device_map" not in family.asked


def test_layers_lie_one_after_the_other_over_several_accelerators():
    family = Family(0, 0, 1)
    load_model(family, OPTIONS, TWO, lambda device: 2)
    assert family.asked["device_map"] == "auto" and family.moved == []


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (
            (0, 1, "cpu"),
            "does not fit in 2 accelerators: layers of it would be in cpu; ask for more in workerGroup.acc",
        ),
        ((0, "disk", "cpu"), "layers of it would be in cpu and disk"),
    ],
)
def test_a_model_that_does_not_fit_is_not_read_from_the_hosts_memory(layers, words):
    with pytest.raises(InvalidJob) as caught:
        load_model(Family(*layers), OPTIONS, TWO, lambda device: 2)
    assert words in str(caught.value)


@pytest.mark.parametrize(("place", "num_found", "words"), [(ONE, 0, "finds none"), (TWO, 1, "finds 1")])
def test_a_copy_that_finds_too_few_accelerators_says_so_before_it_reads_a_model(place, num_found, words):
    family = Family()
    with pytest.raises(InvalidJob) as caught:
        load_model(family, OPTIONS, place, lambda device: num_found)
    assert f"a copy wants {place.accelerators} CUDA devices (profile nvidia) and {words}" in str(caught.value)
    assert family.asked == {}


def test_nobody_counts_accelerators_for_a_copy_on_cpus():
    load_model(Family(), OPTIONS, ON_CPU, lambda device: pytest.fail("asked"))


def on_cuda(family, **inputs):
    """A tiny model of the family there; nothing is computed with it."""
    with torch.device("cuda"):
        return family.from_config(TINY).eval()


def test_what_a_model_reads_goes_where_it_lies_and_what_it_says_comes_back():
    with torch._subclasses.FakeTensorMode():
        inputs = padded([[3, 4, 5], [6, 7]], pad=0)
        assert inputs["input_ids"].device.type == "cpu"
        said = head_of(on_cuda(AutoModelForSequenceClassification), inputs)
        assert [(item.shape, item.device.type, item.dtype) for item in said] == [((1,), "cpu", torch.float32)] * 2
        vectors = mean_hidden(on_cuda(AutoModel), inputs)
        assert (vectors.shape, vectors.device.type) == ((2, 16), "cpu")


class Generating:
    """Says the numbers from 40 on, wherever it lies."""

    device = torch.device("cuda", 0)

    def generate(self, input_ids, attention_mask, **sampling):
        assert input_ids.device == attention_mask.device == self.device
        self.asked = sampling
        said = torch.arange(40, 42, device=self.device).expand(len(input_ids), 2)
        return torch.cat([input_ids, said], dim=1)


def test_a_judge_is_asked_where_it_lies_and_its_answers_come_back():
    model = Generating()
    with torch._subclasses.FakeTensorMode():
        tokens = continued(model, [[3, 4, 5], [6]], pad=0, max_new_tokens=2)
    assert (tokens.shape, tokens.device.type) == ((2, 2), "cpu")
    assert model.asked == {"pad_token_id": 0, "max_new_tokens": 2}
