"""What a model's files say of it, one module at a time; `test_bad_inputs` has whole jobs."""

import json

import jinja2
import pytest
from tokenizers import AddedToken, Tokenizer, models

from rljob_api.v1alpha1 import ModelSpec
from rljob_worker.errors import BadData
from rljob_worker.rehearsal.inputs.model_files import adapter_findings, architecture_findings
from rljob_worker.rehearsal.inputs.prompts import stop_findings
from rljob_worker.rehearsal.inputs.tokenizer import LightTokenizer
from rljob_worker.rehearsal.inputs.weight_names import linear_layers, weight_shapes
from rljob_worker.weight_index import INDEX

AT = "spec.models[1]"
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    "model.layers.0.mlp.up_proj.weight": (24, 8),
    "model.layers.0.mlp.up_proj.bias": (24,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.1.self_attn.q_proj.weight": (8, 8),
}


def write_weights(file, shapes):
    """Headers as the format has them, without the numbers."""
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


def model(**fields):
    return ModelSpec.model_validate({"name": "actor", "path": "there", **fields})


def messages(findings):
    return [
        (finding.problem.path, finding.problem.found, finding.problem.message, finding.problem.fix)
        for finding in findings
    ]


def test_shapes_are_those_of_all_files(tmp_path):
    names = list(SHAPES)
    write_weights(tmp_path / "a.safetensors", {name: SHAPES[name] for name in names[:2]})
    write_weights(tmp_path / "b.safetensors", {name: SHAPES[name] for name in names[2:]})
    assert weight_shapes(tmp_path) == SHAPES


def test_where_files_are_elsewhere_the_index_has_the_names(tmp_path):
    (tmp_path / "a.safetensors").touch()
    assert weight_shapes(tmp_path) == {}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"one": "a.safetensors"}}))
    assert weight_shapes(tmp_path) == {"one": None}


@pytest.mark.parametrize(
    ("content", "fix"),
    [
        (b"\x00" * 4, "fetch the model again"),
        (b"\xff" + bytes(7) + b"{", "fetch the model again"),  # a header of 255 bytes, of which 1 is there
        (b"\x02" + bytes(7) + b"[]", "fetch the model again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "`git lfs pull` in its folder"),
    ],
)
def test_what_is_no_header_is_reported_with_what_helps(tmp_path, content, fix):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(BadData, match=f"a.safetensors is not a safetensors file; {fix}"):
        weight_shapes(tmp_path)


def test_layers_are_matrices_in_what_is_numbered():
    layers = {"model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"}
    assert linear_layers(SHAPES) == layers
    assert linear_layers(dict.fromkeys(SHAPES)) == layers  # by their names alone
    assert linear_layers({"h.0.ln_1.weight": None, "h.0.attn.c_proj.weight": None}) == {"h.0.attn.c_proj"}


def test_a_model_is_of_a_family_and_not_quantized():
    assert messages(architecture_findings(model(), AT, {"model_type": "qwen3"})) == []
    config = {"model_type": "mamba", "quantization_config": {"quant_method": "gptq"}}
    unknown, quantized = messages(architecture_findings(model(), AT, config))
    assert unknown[:3] == (f"{AT}.path", "there", "the engines do not know models of type mamba")
    assert unknown[3].startswith("Use one of gemma2, ") and unknown[3].endswith(".")
    fix = "Name the model that they were made of."
    assert quantized == (f"{AT}.path", "there", "its weights are quantized by gptq", fix)
    (other,) = messages(architecture_findings(model(), AT, {"model_type": "qwen3", "quantization_config": {"bits": 4}}))
    assert other[2] == "its weights are quantized by another number format"


@pytest.mark.parametrize("target", ["q_proj", "self_attn.q_proj", "base.model.layers.0.mlp.up_proj"])
def test_an_adapter_beside_a_layer_is_accepted(target):
    assert messages(adapter_findings(model(adapter={"rank": 4, "targets": [target]}), AT, SHAPES)) == []


def test_an_adapter_beside_no_layer_is_reported_with_those_there_are():
    asked = model(adapter={"rank": 4, "targets": ["q_proj", "up_porj", "embed_tokens"]})
    message = "it matches no linear layer in the decoder of there"
    assert messages(adapter_findings(asked, AT, SHAPES)) == [
        (f"{AT}.adapter.targets[1]", "up_porj", message, "Did you mean up_proj? There are q_proj, up_proj."),
        (f"{AT}.adapter.targets[2]", "embed_tokens", message, "There are q_proj, up_proj."),
    ]
    assert messages(adapter_findings(asked, AT, {})) == messages(adapter_findings(model(), AT, SHAPES)) == []


def test_a_special_token_is_no_text_of_a_response():
    backend = Tokenizer(models.WordLevel({"a": 0}, "a"))
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens(["word"])
    result = messages(stop_findings(["word", "<|end|>"], LightTokenizer("there", backend, None, {})))
    message = "this is a special token, which is not text in a response"
    assert result == [("spec.rollout.stop[1]", "<|end|>", message, "Write stopTokenIds: [1].")]


def test_a_chat_template_is_compiled_once_and_each_tokenizer_has_its_own(monkeypatch):
    compiled, from_string = [], jinja2.Environment.from_string

    def recording(environment, source):
        compiled.append(source)
        return from_string(environment, source)

    monkeypatch.setattr(jinja2.Environment, "from_string", recording)
    backend = Tokenizer(models.WordLevel({"a": 0}, "a"))
    templates = ("{{ bos_token }}{{ messages[0] }}", "{{ messages[0] }}!")
    tokenizers = [LightTokenizer("there", backend, template, {"bos_token": "<"}) for template in templates]
    rendered = [
        item.apply_chat_template([word], tokenize=False, add_generation_prompt=True)
        for word in ("a", "b")
        for item in tokenizers
    ]
    assert rendered == ["<a", "a!", "<b", "b!"]
    assert compiled == list(templates)
