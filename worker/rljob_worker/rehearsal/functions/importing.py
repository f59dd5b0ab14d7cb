"""`python -m rljob_worker.rehearsal.functions.importing`: imports users' functions in a process that may die of it.

Standard input holds a JSON list of references; a line of JSON answers each on the descriptor that was standard output:
null, or the field that is to blame and why it cannot be called. What the user's modules print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys

from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.functions.reference import REWARD_ARGUMENTS, SHIPPED, FunctionReference
from rljob_worker.rewards.loading import check_reward
from rljob_worker.rewards.reads import check_row_reads
from rljob_worker.users_code.function import check_call, load_function
from rljob_worker.users_code.search_path import add_to_path


def why_not(reference: FunctionReference) -> tuple[str, str] | None:
    """The field that is to blame, and why a reference cannot be called as it will be; None where it can."""
    owner, run, options = reference.owner, reference.run, reference.options
    to_blame = reference.path
    try:
        function = load_function(owner, run)
        is_reward = tuple(reference.arguments) == tuple(REWARD_ARGUMENTS)
        if is_reward and not run.startswith(SHIPPED):  # of which another room knows who needs a column
            check_row_reads(owner, run, function, reference.columns, options)
        to_blame = reference.options_path if options else reference.path
        if is_reward:
            check_reward(owner, run, function, reference.columns, options, asks_service=reference.asks_service)
        else:
            check_call(owner, run, function, reference.arguments, options)
    except InvalidJob as error:
        return to_blame, str(error)
    return None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    add_to_path()
    for fields in json.load(sys.stdin):
        answers.write(json.dumps(why_not(FunctionReference(*fields))) + "\n")
        answers.flush()
    os._exit(0)  # not the user's exit handlers, nor a thread of theirs


if __name__ == "__main__":
    main()
