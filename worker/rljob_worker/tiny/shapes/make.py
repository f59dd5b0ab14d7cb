"""Makes the model that counts shapes, and the data that it is trained on next."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_worker.tiny.pretrain import pretrain_on, reporter
from rljob_worker.tiny.problems import terse
from rljob_worker.tiny.recipe import ShapesRecipe
from rljob_worker.tiny.shapes.scenes import COUNTS, Scene, answers, exchanged_rows, rows, scenes
from rljob_worker.tiny.shapes.seeing_model import (
    BUDGET,
    SeenBatch,
    build_seeing_model,
    build_tokenizer,
    collate_seen,
    greedy_accuracy_of,
    save,
    seen_loss,
)
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.processing import PictureProcessor


def make_shapes_model(recipe: ShapesRecipe, directory: Path) -> None:
    """Writes `directory`/model, train.parquet, validation.parquet and exchanged.parquet: the validation with the
    pictures of other prompts."""
    train = scenes(recipe.num_train, f"train {recipe.seed}")
    validation = scenes(recipe.num_validation, f"validation {recipe.seed}")
    exchanged = exchanged_rows(validation, recipe.seed)
    for name, part in (("train", rows(train)), ("validation", rows(validation)), ("exchanged", exchanged)):
        pq.write_table(pa.Table.from_pylist(part), directory / f"{name}.parquet")
    tokenizer = build_tokenizer(_spelling(train))
    model = build_seeing_model(tokenizer, recipe.seed)
    save(model, tokenizer, directory / "model")
    processor = PictureProcessor.load(str(directory / "model"), BUDGET)
    said = answers(train, recipe.worked_share, recipe.seed)

    def batch() -> list[SeenBatch]:
        part = list(itertools.islice(said, recipe.pretraining.rows_per_step))
        styles = ([row for row in part if ("\n" in row[1]) == worked] for worked in (False, True))
        return [collate_seen(tokenizer, processor, style) for style in styles if style]

    pretrain_on(model, batch, recipe.pretraining, reporter(model, recipe.pretraining.steps), seen_loss)
    accuracy = greedy_accuracy_of(model, tokenizer, processor, validation)
    print(f"greedy accuracy of the base model: {accuracy:.2f}", flush=True)
    save(model, tokenizer, directory / "model")


def _spelling(train: list[Scene]) -> list[str]:
    """Every word and way of answering the tokenizer has to know."""
    texts = [text for scene in train for text in (scene.prompt().removeprefix(PLACE), scene.worked())]
    return [*texts, *(terse(count) for count in COUNTS for _ in range(2))]
