"""`python -m rljob_worker.rehearsal.importing`: imports the user's functions, in a process that may hang or die of it.

Standard input holds a JSON list of references; a line of JSON answers each on the descriptor that was standard output:
null, or why it cannot be called. What the user's modules print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys

from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.references import REWARD_ARGUMENTS, Reference
from rljob_worker.rewards.forms import in_row_form
from rljob_worker.rewards.loading import check_reward
from rljob_worker.users_code import add_to_path
from rljob_worker.users_function import check_call, load_function


def why_not(reference: Reference) -> str | None:
    """Why a reference cannot be called as it will be; None where it can."""
    try:
        function = load_function(reference.owner, reference.run)
        if tuple(reference.arguments) == tuple(REWARD_ARGUMENTS):
            function, asks = in_row_form(function), reference.asks_service
            check_reward(reference.owner, reference.run, function, reference.options, asks_service=asks)
        else:
            check_call(reference.owner, reference.run, function, reference.arguments, reference.options)
    except InvalidJob as error:
        return str(error)
    return None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    add_to_path()
    for fields in json.load(sys.stdin):
        answers.write(json.dumps(why_not(Reference(*fields))) + "\n")
        answers.flush()
    os._exit(0)  # not the user's exit handlers, nor a thread of theirs


if __name__ == "__main__":
    main()
