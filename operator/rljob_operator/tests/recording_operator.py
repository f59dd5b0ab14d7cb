"""An operator whose reconcile only says what it looks at: `python -m rljob_operator.tests.recording_operator ...`.

Of a job named `slow` it ends only when a line comes from its standard input.
"""

import asyncio
import sys

from rljob_operator.process.command import run_command
from rljob_operator.process.leader import Reconcile, ReconcilerContext
from rljob_operator.vocabulary.key import Key


def make_reconcile(context: ReconcilerContext) -> Reconcile:
    async def reconcile(key: Key) -> None:
        print("begin", key, flush=True)
        if key.name == "slow":
            await asyncio.to_thread(sys.stdin.readline)
        print("end", key, flush=True)

    return reconcile


if __name__ == "__main__":
    sys.exit(run_command(make_reconcile))
