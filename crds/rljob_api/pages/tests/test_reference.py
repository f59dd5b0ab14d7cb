"""Tests of the generated reference of fields."""

import re

import pytest

from rljob_api.catalogue.algorithms import ALGORITHMS
from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.catalogue.stages import STAGES
from rljob_api.checks.unsupported import UNBUILT
from rljob_api.pages.reference import reference_text
from rljob_api.tests.builders import problems
from rljob_api.vocabulary.exit_codes import ExitCode

TEXT = reference_text()


def test_the_reference_tells_type_default_and_meaning_of_a_field():
    assert "## `spec.algorithm.kl`" in TEXT
    assert "- **`horizon`** (whole number, default `10000`)\n  Over how many rows" in TEXT
    assert "- **`batchSize`** (whole number, required)" in TEXT
    assert '- **`schedule`** (`Constant` or `Linear` or `Cosine`, default `"Constant"`)' in TEXT
    assert "- **`betas`** (list of number, default `[0.9, 0.999]`)" in TEXT
    assert "- **`lambda`** (number, default `1.0`)" in TEXT
    assert "## `spec.dag.stages[]`" in TEXT


def test_the_reference_lists_the_catalogue():
    for name in (*STAGES, *ALGORITHMS, *DEFAULT):
        assert f"`{name}`" in TEXT
    for code in ExitCode:
        assert f"- `{code.value}`: {code.meaning}" in TEXT


@pytest.mark.parametrize(
    "override",
    [
        "training.engine=Megatron",
        "training.parallelism.expert=2",
        "training.parallelism.pipeline=2",
        "models.0.adapter={rank: 4, dropout: 0.1}",
        "training.compile=true",
    ],
)
def test_what_is_refused_because_it_is_not_built_is_marked(override):
    beside = {
        "training.engine=Megatron": ["training.compile=true"],
        "training.parallelism.expert=2": ["models.0.adapter={rank: 4}"],
        "training.compile=true": ["training.parallelism.expert=2"],
    }
    said = problems(override, *beside.get(override, []), "workerGroups=[{name: train, accelerator: {count: 2}}]")
    (result,) = [item for item in said if "not built" in item.message]
    path = re.sub(r"\d+", "", result.path)
    assert path.removeprefix("spec.") in UNBUILT
    parent, _, field = path.rpartition(".")
    section = TEXT.partition(f"## `{parent}`\n")[2].partition("\n## ")[0]
    assert "**Not built yet:**" in section.partition(f"- **`{field}`**")[2].partition("\n- **")[0]
    assert TEXT.count("**Not built yet:**") == len(UNBUILT) == 5


def test_python_spelling_stays_out():
    assert "batch_size" not in TEXT
    assert "lambda_" not in TEXT
