"""Generated pages are what the code says now, and every example in them is a job that can be planned."""

from pathlib import Path

import pytest
import yaml

from rljob_api.catalogue.algorithms import AGGREGATIONS, ALGORITHMS, CORRECTIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.loading.load import parse_job
from rljob_api.pages.algorithms_page import algorithms_text
from rljob_api.pages.formulas import explanations
from rljob_api.pages.reference import reference_text
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import SMALL

ROOT = Path(__file__).parents[4]
FUNCTIONS = ROOT / "worker" / "rljob_worker" / "algorithms"
TEXT = algorithms_text(FUNCTIONS)
EXAMPLES = [block.partition("```")[0] for block in TEXT.split("```yaml\n")[1:]]


@pytest.mark.parametrize(
    ("page", "text"), [("rljob-reference.md", reference_text()), ("algorithms.md", TEXT)], ids=lambda item: item[:20]
)
def test_the_page_is_up_to_date(page, text):
    assert (ROOT / "docs" / page).read_text() == text, "run `make docs`"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: " ".join(example.split())[:70])
def test_an_example_is_a_job(example):
    job = yaml.safe_load(SMALL)
    job["spec"] |= yaml.safe_load(example)
    plan(parse_job(yaml.safe_dump(job)))


def test_every_name_of_the_catalogue_has_a_row_and_an_example():
    for name in (*ALGORITHMS, *ESTIMATORS, *LOSSES, *KL_ESTIMATORS, *AGGREGATIONS, *CORRECTIONS):
        assert f"\n| `{name}` | " in TEXT and f"\n`{name}`\n\n```yaml" in TEXT


def test_every_registered_function_is_explained_by_sentence_formula_and_paper():
    result = explanations(FUNCTIONS)
    for registry, names in (("ADVANTAGES", ESTIMATORS), ("POLICY_LOSSES", LOSSES), ("KL_ESTIMATORS", KL_ESTIMATORS)):
        for name in names:
            explained = result[registry, name]
            assert explained.sentence.endswith(".") and explained.formula and explained.papers, (registry, name)


def test_formulas_follow_a_function_that_hands_options_on(tmp_path):
    (tmp_path / "losses.py").write_text(
        '''
def plain(x):
    """The mean.

    L = x / n
    x = y

    Somebody https://arxiv.org/abs/1, https://arxiv.org/abs/2
    x: [tokens].
    """

@LOSSES.register("Plain")
def plain_loss(tokens, options):
    """`plain` with the options of the job."""

class Whole:
    """`plain`, once more."""

LOSSES.register("Whole", reads=("x",))(Whole())
'''
    )
    result = explanations(tmp_path)
    assert set(result) == {("LOSSES", "Plain"), ("LOSSES", "Whole")}
    explained = result["LOSSES", "Plain"]
    assert explained == result["LOSSES", "Whole"]
    assert (explained.sentence, explained.formula) == ("The mean.", ("L = x / n", "x = y"))
    assert explained.papers == ("https://arxiv.org/abs/1", "https://arxiv.org/abs/2")
