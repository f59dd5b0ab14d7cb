"""All settings of the tiny model and data, and the key that names what they make."""

import dataclasses
import json
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Literal

from rljob_worker.built_once import short_digest
from rljob_worker.tiny.corpus import CorpusMixture

# Raised when the same settings begin to give another result.
_VERSION = 2
Subject = Literal["Calculator", "GuessingGame", "Team"]
"""What conversations are about (`calculator`, `guessing_game`, `team` of `tiny.conversations`)."""
CONVERSATION_STEPS: dict[Subject, int] = {"Calculator": 250, "GuessingGame": 150, "Team": 300}
"""After these a model calls and guesses as its corpus does; more would only cost time."""
Script = Literal["ReachPictures", "MetaWorldReach"]
"""What a policy that acts is cloned from: the plane's script, which sees pictures, or Meta-World's of reach-v3."""
_DECIDING_PACKAGES = ("tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class Pretraining:
    """Optimizer settings; `steps` 0 leaves the model as it was initialised."""

    steps: int = 400
    rows_per_step: int = 64
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    warmup_steps: int = 30
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0


CLONING: dict[Script, Pretraining] = {
    "ReachPictures": Pretraining(steps=800, rows_per_step=32, learning_rate=2e-3),
    "MetaWorldReach": Pretraining(steps=300, rows_per_step=64, learning_rate=2e-3),
}
"""How policies are cloned: with AdamW's rate, of which no matrix has its own."""


@dataclass(frozen=True)
class Recipe:
    """What decides the result, bit for bit on the same machine with the same number of threads."""

    seed: int = 0
    num_train: int = 4096
    num_validation: int = 256
    threads: int = 2
    mixture: CorpusMixture = field(default_factory=CorpusMixture)
    pretraining: Pretraining = field(default_factory=Pretraining)

    def stamp(self) -> str:
        """The recipe, its version and those of the packages that compute the result, as JSON."""
        packages = {name: version(name) for name in _DECIDING_PACKAGES}
        return json.dumps({"version": _VERSION, "packages": packages, **dataclasses.asdict(self)}, indent=2)

    def key(self) -> str:
        """Names what the recipe makes: twelve hex digits."""
        return short_digest(self.stamp())


@dataclass(frozen=True)
class ConversationRecipe(Recipe):
    """A model that has read conversations in place of answers. `mixture` decides nothing of it."""

    subject: Subject = "Calculator"


@dataclass(frozen=True)
class ActingRecipe(Recipe):
    """A policy that is cloned from a script (`tiny.acting`). `pretraining` says how long; `mixture` decides nothing of
    it, and neither do numbers of rows: it has no data but what its simulator lists."""

    script: Script = "ReachPictures"
    script_version: int = 5
    """Raised when a script, or what it acts in, becomes another."""


def acting(recipe: Recipe, script: Script) -> ActingRecipe:
    """With the seed and threads of a recipe; one that makes fewer steps makes as few of these."""
    pretraining = CLONING[script]
    if recipe.pretraining.steps < 100:
        pretraining = replace(pretraining, steps=min(recipe.pretraining.steps, pretraining.steps))
    return ActingRecipe(seed=recipe.seed, threads=recipe.threads, pretraining=pretraining, script=script)


@dataclass(frozen=True)
class ShapesRecipe(Recipe):
    """A model that sees and has read how shapes are counted. `mixture` decides nothing of it."""

    worked_share: float = 0.35
    """Share of answers that count cell by cell; the others are terse and wrong."""


SHAPES_STEPS = 250
"""After these what counts cell by cell is nearly always right."""


def shapes(recipe: Recipe) -> ShapesRecipe:
    """With the settings of a recipe, for pictures of shapes. One that makes a model which knows nothing still does."""
    is_quick = recipe.pretraining.steps < Pretraining().steps
    pretraining = recipe.pretraining if is_quick else replace(recipe.pretraining, steps=SHAPES_STEPS)
    settings = {item.name: getattr(recipe, item.name) for item in dataclasses.fields(Recipe)}
    return ShapesRecipe(**settings | {"pretraining": pretraining, "num_train": min(recipe.num_train, 2048)})


def conversations(recipe: Recipe, subject: Subject) -> ConversationRecipe:
    """With the settings of a recipe; conversations are read in fewer steps than its answers."""
    steps = min(recipe.pretraining.steps, CONVERSATION_STEPS[subject])
    recipe = replace(recipe, pretraining=replace(recipe.pretraining, steps=steps))
    settings = {item.name: getattr(recipe, item.name) for item in dataclasses.fields(recipe)}
    return ConversationRecipe(**settings, subject=subject)


def long_answers(recipe: Recipe) -> Recipe:
    """With products counted up; what has more to read of each problem needs longer for what comes after it."""
    pretraining = replace(recipe.pretraining, steps=2 * recipe.pretraining.steps)
    return replace(recipe, mixture=replace(recipe.mixture, counts_up=True), pretraining=pretraining)


def quick(seed: int = 0, steps: int = 2) -> Recipe:
    """For tests that need a model which loads and samples, not one that knows anything: made in seconds."""
    pretraining = Pretraining(steps, rows_per_step=16)
    return Recipe(seed, num_train=256, num_validation=32, threads=1, pretraining=pretraining)
