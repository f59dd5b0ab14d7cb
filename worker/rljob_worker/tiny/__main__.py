"""`python -m rljob_worker.tiny --out DIR`: the tiny model and its data, made unless this user has them already."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from rljob_worker.tiny.provide import provide
from rljob_worker.tiny.recipe import Recipe, acting, conversations, long_answers, quick, shapes


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    # read when torch is imported: threads that spin while they wait make training five times slower on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    recipe = quick(options.seed) if options.quick else Recipe(options.seed)
    if options.long_answers:
        recipe = long_answers(recipe)
    if options.subject is not None:
        recipe = conversations(recipe, options.subject)
    if options.script is not None:
        recipe = acting(recipe, options.script)
    if options.shapes:
        recipe = shapes(recipe)
    if options.threads is not None:
        recipe = replace(recipe, threads=options.threads)
    if options.steps is not None:
        recipe = replace(recipe, pretraining=replace(recipe.pretraining, steps=options.steps))
    if provide(recipe, options.out):
        data = "" if options.script is not None else ", train.parquet and validation.parquet"
        print(f"wrote {options.out}/model{data}")
    else:
        print(f"{options.out} is up to date")
    if options.graders:
        from rljob_worker.tiny.graders import provide_graders

        provide_graders(options.out, recipe.seed, recipe.threads)
        print(f"wrote {options.out}/reward-model and {options.out}/judge")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_worker.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="decides problems, words and weights")
    parser.add_argument("--steps", type=int, default=None, help="pre-training steps; 0 leaves it untrained")
    parser.add_argument("--threads", type=int, default=None, help="torch threads, 2 by default")
    parser.add_argument("--quick", action="store_true", help="a model that knows nothing, for tests")
    parser.add_argument("--long-answers", action="store_true", help="a model that counts products up: 4 to 73 tokens")
    subjects = parser.add_mutually_exclusive_group()
    for name, subject, what in (
        ("--calculator", "Calculator", "a model that sometimes calls a tool `calculator`"),
        ("--guessing-game", "GuessingGame", "a model that guesses numbers, one game in four by bisection"),
        ("--team", "Team", "a model that solves problems, or checks what another says of them"),
    ):
        subjects.add_argument(name, dest="subject", action="store_const", const=subject, help=what)
    for name, script, what in (
        ("--reach-pictures", "ReachPictures", "a policy that sees a plane, and moves its cursor too little"),
        ("--metaworld-reach", "MetaWorldReach", "a policy of Meta-World's reach-v3, which needs that package"),
    ):
        subjects.add_argument(name, dest="script", action="store_const", const=script, help=what)
    subjects.add_argument("--shapes", action="store_true", help="a model that sees, and pictures of shapes to count")
    parser.add_argument("--graders", action="store_true", help="models that grade its answers, too")
    return parser


if __name__ == "__main__":
    main()
