"""`python -m rljob_worker.embodied.new_mlp_policy --out DIR`: an untrained policy for a simulator that shows numbers.

What it reads is the state of the simulator, and what it writes a decision of `chunk` actions, each number of which is
one of some bins between -1 and 1.
"""

import argparse
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    from rljob_worker.embodied.mlp_files import write_mlp_policy

    write_mlp_policy(
        options.out,
        state_size=options.state_size,
        dimensions=options.dimensions,
        chunk=options.chunk,
        bins=options.bins,
        hidden_size=options.hidden_size,
        seed=options.seed,
    )
    print(f"wrote {options.out}: rollout.maxResponseTokens is {options.chunk * options.dimensions}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_worker.embodied.new_mlp_policy", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--state-size", type=int, required=True, help="numbers that the simulator shows")
    parser.add_argument("--dimensions", type=int, required=True, help="numbers of an action")
    parser.add_argument("--chunk", type=int, default=1, help="actions of a decision, rollout.simulator.actionChunk")
    parser.add_argument("--bins", type=int, default=256, help="values that each number of an action may have")
    parser.add_argument("--hidden-size", type=int, default=64, help="width of its layers")
    parser.add_argument("--seed", type=int, default=0, help="decides its weights")
    return parser


if __name__ == "__main__":
    main()
