"""`python -m rljob_worker.tiny --out DIR`: the tiny model and its data, made unless this user has them already."""

import argparse
from dataclasses import replace
from pathlib import Path

from rljob_worker.tiny.provide import provide
from rljob_worker.tiny.recipe import Recipe, quick


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    recipe = quick(options.seed) if options.quick else Recipe(options.seed)
    if options.threads is not None:
        recipe = replace(recipe, threads=options.threads)
    if options.steps is not None:
        recipe = replace(recipe, pretraining=replace(recipe.pretraining, steps=options.steps))
    if provide(recipe, options.out):
        print(f"wrote {options.out}/model, train.parquet and validation.parquet")
    else:
        print(f"{options.out} is up to date")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_worker.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="decides problems, words and weights")
    parser.add_argument("--steps", type=int, default=None, help="pre-training steps; 0 leaves it untrained")
    parser.add_argument("--threads", type=int, default=None, help="torch threads, 2 by default")
    parser.add_argument("--quick", action="store_true", help="a model that knows nothing, for tests")
    return parser


if __name__ == "__main__":
    main()
