"""A model of the job's own that grades rows: beside the same one served, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rljob_api.catalogue.services import RewardModelOptions
from rljob_api.tests.builders import make_plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.services.models.reward_model import ServedRewardModel as Served
from rljob_worker.services.tests.test_models import classifier_of
from rljob_worker.stages.rewarding.reward import reward_rows
from rljob_worker.stages.rewarding.reward_model import RewardModel
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

NUM_ROWS, GROUP_SIZE = 6, 2


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graded")
    make_model(quick(0), directory)
    return directory / "model"


@pytest.fixture(scope="module")
def classifier(language_model: Path) -> Path:
    return classifier_of(language_model, AutoModelForSequenceClassification, 1)


def plan_of(language_model: Path, classifier: Path, workers: int = 1, **options: Any) -> Any:
    fields = ", ".join(f"{name}: {value!r}" for name, value in options.items())
    return make_plan(
        f"models=[{{name: actor, path: {language_model}}}, {{name: taste, path: {classifier}}}]",
        "rewards=[{name: correct, run: 'my:correct', column: answer}, "
        f"{{name: good, run: RewardModel, model: taste, column: level, options: {{{fields}}}}}]",
        f"workerGroups=[{{name: train, accelerator: {{count: {workers}}}}}]",
        "training.precision=Float32",
        "training.tokensPerMicroBatch=64",
    )


def rows_of(language_model: Path) -> Batch:
    """Responses of several lengths, one of them empty, to prompts of three groups."""
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    prompts = ["How many eggs?", "How many eggs?", "How many?", "How many?", "5+5?", "5+5?"]
    responses = ["3*4=12\n12-5=7\n#### 7", "#### 9", "", "12-5=7", "5+5=10\n#### 10", "#### 3"]
    texts = {"prompt_ids": prompts, "response_ids": responses}
    columns = {name: Column.ragged([tokenizer(item)["input_ids"] for item in result]) for name, result in texts.items()}
    columns |= {"answer": Column.strings(["7"] * NUM_ROWS), "level": Column.strings(["easy", "hard"] * 3)}
    num_tokens = columns["prompt_ids"].lengths + columns["response_ids"].lengths
    return Batch.build(np.arange(NUM_ROWS), np.arange(NUM_ROWS) // GROUP_SIZE, columns, num_tokens)


def context_of(plan: Any, language_model: Path, mesh: Any = None) -> StageContext:
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    return StageContext(
        step=1,
        seed=0,
        job=plan.spec,
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        reduce=lambda tensor: tensor if mesh is None else mesh.sum(tensor),
        dp_rank=0,
        dp_size=1,
    )


def graded(plan: Any, language_model: Path, mesh: Any = None, rank: int = 0, ranks: int = 1) -> tuple[Any, Any]:
    engine = build_train_engine(plan, plan.engine("taste"), torch.device("cpu"), mesh)
    stage = RewardModel(plan.stage("reward_model_1"), Resources(plan, {"taste": engine}, {}))
    batch = rows_of(language_model).take(np.arange(rank, NUM_ROWS, ranks))
    result = stage.run(batch, context_of(plan, language_model, mesh))
    return result.batch["taste_rewards"], result.metrics


def served(language_model: Path, classifier: Path, **options: Any) -> list[Any]:
    decode = context_of(plan_of(language_model, classifier), language_model).decode
    rows = [{**row, "reference": row["level"]} for row in reward_rows(rows_of(language_model), decode)]
    return Served(RewardModelOptions(path=str(classifier), **options)).rewards(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "Sigmoid"},
        {"template": "{reference} {level}: {response}", "max_tokens": 5},
    ],
    ids=["chat template", "sigmoid", "template, cut"],
)
def test_its_rewards_are_those_of_the_same_model_served(language_model: Path, classifier: Path, options: Any) -> None:
    in_yaml = {"maxTokens" if name == "max_tokens" else name: value for name, value in options.items()}
    result, metrics = graded(plan_of(language_model, classifier, **in_yaml), language_model)
    answers = served(language_model, classifier, **options)
    assert result.values.tolist() == pytest.approx([item["reward"] for item in answers], abs=1e-4)
    assert len({round(value, 4) for value in result.values.tolist()}) > 3
    truncated = sum(item["truncated"] for item in answers)
    assert metrics["reward/good/truncated"].value == truncated / NUM_ROWS
    assert (truncated > 0) == ("max_tokens" in options)


def on_a_rank(rank: int, language_model: str, classifier: str) -> list[float]:
    plan = plan_of(Path(language_model), Path(classifier), workers=2)
    mesh = plan.engine("taste").mesh
    meshes = build_meshes([mesh], rank, torch.device("cpu"), deadline_seconds=TEST_TIMEOUT_SECONDS)
    result, _ = graded(plan, Path(language_model), meshes[mesh], rank, 2)
    return list(result.values.tolist())


def test_two_ranks_that_share_its_weights_find_what_one_does(
    language_model: Path, classifier: Path, tmp_path: Path
) -> None:
    alone, _ = graded(plan_of(language_model, classifier), language_model)
    even, odd = run_ranks(2, on_a_rank, tmp_path, str(language_model), str(classifier))
    together = [value for pair in zip(even, odd, strict=True) for value in pair]
    assert together == pytest.approx(alone.values.tolist(), abs=1e-4)


def test_a_model_without_a_head_or_with_two_outputs_is_refused(language_model: Path, classifier: Path) -> None:
    plan = plan_of(language_model, two_outputs(language_model))
    with pytest.raises(InvalidJob, match="has 2 outputs, and a model of rewards has 1"):
        build_train_engine(plan, plan.engine("taste"), torch.device("cpu"))
    plan = plan_of(language_model, without_head(language_model, classifier))
    with pytest.raises(InvalidJob, match=r"have no score.weight, the head of a sequence classifier"):
        build_train_engine(plan, plan.engine("taste"), torch.device("cpu"))


def two_outputs(language_model: Path) -> Path:
    folder = language_model.parent / "two-outputs"
    AutoModelForSequenceClassification.from_pretrained(language_model, num_labels=2).save_pretrained(folder)
    return folder


def without_head(language_model: Path, classifier: Path) -> Path:
    """A policy's weights under a classifier's config."""
    folder = language_model.parent / "no-head"
    folder.mkdir()
    (folder / "config.json").write_text((classifier / "config.json").read_text())
    (folder / "model.safetensors").write_bytes((language_model / "model.safetensors").read_bytes())
    return folder


class Saying:
    """An engine that says these numbers."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = numbers

    def values(self, batch: Batch) -> Column:
        return Column.from_lengths(np.array(self._numbers, np.float32), np.ones(len(batch), np.int64))


def test_a_number_that_is_none_ends_the_job_with_model_and_row(language_model: Path, classifier: Path) -> None:
    plan = plan_of(language_model, classifier)
    engine: Any = Saying(1, 2, 3, np.nan, 5, 6)
    stage = RewardModel(plan.stage("reward_model_1"), Resources(plan, {"taste": engine}, {}))
    with pytest.raises(BadData, match='reward "good" on row 4: model taste says nan'):
        stage.run(rows_of(language_model), context_of(plan, language_model))


def test_rows_that_are_cut_are_reported_once(
    language_model: Path, classifier: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(language_model, classifier, template="{response}", maxTokens=4)
    engine: Any = Saying(*range(NUM_ROWS))
    stage = RewardModel(plan.stage("reward_model_1"), Resources(plan, {"taste": engine}, {}))
    for _ in range(2):
        stage.run(rows_of(language_model), context_of(plan, language_model))
    (line,) = [record.getMessage() for record in caplog.records]
    assert 'reward "good"' in line and "longer than maxTokens 4" in line


def test_a_rank_without_rows_takes_part(language_model: Path, classifier: Path) -> None:
    plan = plan_of(language_model, classifier)
    engine: Any = Saying()
    stage = RewardModel(plan.stage("reward_model_1"), Resources(plan, {"taste": engine}, {}))
    result = stage.run(rows_of(language_model).take(np.arange(0)), context_of(plan, language_model))
    assert len(result.batch) == 0 and result.batch["taste_rewards"].num_rows == 0
