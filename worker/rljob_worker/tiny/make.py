"""Makes the model and its data from a recipe."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers.utils import logging as transformers_logging

from rljob_worker.tiny.acting.make import make_acting_model
from rljob_worker.tiny.conversations.make import make_conversation_model
from rljob_worker.tiny.corpus import texts
from rljob_worker.tiny.model import build_model, greedy_accuracy
from rljob_worker.tiny.pretrain import pretrain, reporter
from rljob_worker.tiny.problems import WordProblem, dataset, split_problems, terse
from rljob_worker.tiny.recipe import ActingRecipe, ConversationRecipe, Recipe, ShapesRecipe
from rljob_worker.tiny.seal import break_seal, seal
from rljob_worker.tiny.shapes.make import make_shapes_model
from rljob_worker.tiny.tokenizer import train_tokenizer


def make_model(recipe: Recipe, directory: Path) -> None:
    """Writes `directory`/model, train.parquet and validation.parquet, then seals them.

    The model is a Hugging Face directory with its tokenizer; the files have columns `question` and `answer`, and in a
    recipe of conversations those of its subject, in one of shapes also `images`. A policy that acts has no such files.
    """
    break_seal(directory)
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(recipe.threads)
    transformers_logging.disable_progress_bar()
    if isinstance(recipe, ConversationRecipe):
        make_conversation_model(recipe, directory)
    elif isinstance(recipe, ActingRecipe):
        make_acting_model(recipe, directory)
    elif isinstance(recipe, ShapesRecipe):
        make_shapes_model(recipe, directory)
    else:
        _make_model(recipe, directory)
    seal(directory, recipe)


def _make_model(recipe: Recipe, directory: Path) -> None:
    problems = split_problems(recipe.seed, recipe.num_validation)
    validation = dataset(problems.validation, recipe.num_validation, recipe.seed)
    pq.write_table(pa.Table.from_pylist(validation), directory / "validation.parquet")
    train = dataset(problems.train, recipe.num_train, recipe.seed)
    pq.write_table(pa.Table.from_pylist(train), directory / "train.parquet")
    tokenizer = train_tokenizer(_spelling(problems.train, train))
    model = build_model(tokenizer, recipe.seed)
    read, report = texts(problems.train, recipe.mixture, recipe.seed), reporter(model, recipe.pretraining.steps)
    pretrain(model, tokenizer, read, recipe.pretraining, report)
    accuracy = greedy_accuracy(model, tokenizer, validation)
    print(f"greedy accuracy of the base model: {accuracy:.2f}", flush=True)
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")


def _spelling(problems: tuple[WordProblem, ...], rows: list[dict[str, str]]) -> list[str]:
    """Every word and way of answering the tokenizer has to know."""
    guesses = [terse(problem.result) for problem in problems]
    return [text for row in rows for text in row.values()] + guesses
