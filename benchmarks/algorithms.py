"""Our advantage estimators beside the loops over rows of verl and siiRL: 8,192 rows of up to 4,096 tokens, float32.

    python benchmarks/algorithms.py [--rows 8192] [--max-tokens 4096] [--repeats 3]

Theirs and ours take turns in one process, in a venv of their own: `peer_functions/loop_timing.py`.
"""

from __future__ import annotations

import argparse

from peer_functions import venv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    venv.run("loop_timing.py", *map(str, (options.rows, options.max_tokens, options.repeats)), with_ours=True)


if __name__ == "__main__":
    main()
