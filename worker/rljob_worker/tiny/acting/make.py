"""Makes policies that act, cloned from scripts."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from rljob_worker.embodied.mlp_files import write_mlp_policy
from rljob_worker.embodied.observation import Observation
from rljob_worker.tiny.acting import plane
from rljob_worker.tiny.acting.cloning import Cloning, Shown, clone
from rljob_worker.tiny.acting.metaworld_script import BINS, DIMENSIONS, STATE_SIZE, TASK, arm_decisions
from rljob_worker.tiny.acting.metaworld_script import CHUNK as STATE_CHUNK
from rljob_worker.tiny.acting.plane_policy import CHUNK, write_plane_policy
from rljob_worker.tiny.recipe import ActingRecipe

_REPORTS = 8


def make_acting_model(recipe: ActingRecipe, directory: Path) -> None:
    """Writes `directory`/model."""
    folder, settings = directory / "model", recipe.pretraining
    steps, rows = settings.steps, settings.rows_per_step
    if recipe.script == "MetaWorldReach":
        write_state_policy(folder, recipe.seed)
        shown = arm_decisions(recipe.seed)
    else:
        write_plane_policy(folder, recipe.seed)
        shown = plane_decisions(recipe.seed, first=steps * rows * 3 // 4)
    clone(folder, shown, Cloning(steps, rows, settings.learning_rate, recipe.seed), reporter(steps))


def write_state_policy(folder: Path, seed: int) -> None:
    """Write a policy of Meta-World's states that knows nothing."""
    # bins are a fifth of [-1, 1] wide, and their outermost centres at 0.8
    statistics = {"action": {"q01": [-1.25] * DIMENSIONS, "q99": [1.25] * DIMENSIONS}}
    write_mlp_policy(
        folder,
        state_size=STATE_SIZE,
        dimensions=DIMENSIONS,
        chunk=STATE_CHUNK,
        bins=BINS,
        hidden_size=128,
        norm_stats={TASK: statistics},
        seed=seed,
    )


def plane_decisions(seed: int, first: int = 0) -> Iterator[Shown]:
    """Endless decisions of the plane's script, from anywhere in it; in the first ones it always moves, which says the
    way in fewer pictures."""
    rng = np.random.default_rng([seed, 41])
    tasks = list(plane.TARGETS)
    for number in itertools.count():
        task, place = tasks[int(rng.integers(len(tasks)))], rng.uniform(-1.0, 1.0, 2)
        picture = encoded(plane.drawn(place))
        observation = Observation((picture,), None, plane.instruction(task))
        moving = 1.0 if number < first else plane.MOVES
        yield Shown(observation, plane.scripted(rng, place, task, CHUNK, moving))


def encoded(pixels: np.ndarray) -> bytes:
    """PNG of uint8 [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def reporter(steps: int) -> Callable[[int, float], None]:
    """Prints the loss a few times on the way, on average over the steps since it did so last."""
    every, losses = max(1, steps // _REPORTS), list[float]()

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        if len(losses) == every:
            print(f"step {step + 1} of {steps}: cross entropy {np.mean(losses):.3f}", flush=True)
            losses.clear()

    return report
