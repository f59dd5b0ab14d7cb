"""`python -m rljob_worker.rehearsal.functions.importing`: imports users' functions in a process that may die of it.

The first line of standard input is {"references": [...], "folder": ...}; a line of JSON answers each reference on the
descriptor that was standard output: null, or the field that is to blame, why it cannot be called, and whether that is
because this machine lacks something. Each further line is a `RewardTrial` of one that can be called, which a line for
each of its rows answers: the outcome, as reward processes have it. What the user's modules print goes to standard
error, and nowhere while rewards are tried. What the job calls confined is imported and tried confined, with `folder` to
write in: all references of one process have the confinement of the first.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from rljob_api.vocabulary import keys
from rljob_worker.errors import InvalidJob, NotHere
from rljob_worker.rehearsal.functions.reference import (
    REWARD_ARGUMENTS,
    SHIPPED,
    FunctionReference,
    ImportConfinement,
    RewardTrial,
)
from rljob_worker.rewards.evaluate import Outcome, Row, evaluate, evaluate_async
from rljob_worker.rewards.forms import SHOWN, in_row_form
from rljob_worker.rewards.loading import check_reward, is_async
from rljob_worker.rewards.reads import check_row_reads
from rljob_worker.sandbox.confinement.confine import Confinement, confine, readable_paths
from rljob_worker.sandbox.guardian.environment import bounded_environment
from rljob_worker.users_code.function import check_call, load_function
from rljob_worker.users_code.search_path import add_to_path


def why_not(reference: FunctionReference) -> tuple[str, str, bool] | None:
    """The field that is to blame, why a reference cannot be called as it will be, and whether it may be elsewhere; None
    where it can."""
    owner, run, options = reference.owner, reference.run, reference.options
    to_blame = reference.path
    try:
        if reference.kind != "function":
            _check_played(reference)
            return None
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
        return to_blame, str(error), isinstance(error, NotHere)
    return None


def _check_played(reference: FunctionReference) -> None:
    """Raises InvalidJob for what conversations or episodes cannot call."""
    from rljob_worker.conversations.run_functions.loading import load_run_function
    from rljob_worker.conversations.targets.adapted_environment import is_asynchronous
    from rljob_worker.conversations.targets.schema import describe
    from rljob_worker.embodied.simulators.environment import SimulatedEnvironment
    from rljob_worker.embodied.simulators.settings import SimulatorSettings

    name, run, options = reference.owner, reference.run, reference.options
    if reference.kind == "tool":
        describe(run, options, name)
    elif reference.kind == "environment":
        is_asynchronous(name, run, options)
    elif reference.kind == "simulator":
        os.environ.update(reference.variables)
        SimulatedEnvironment.make(SimulatorSettings(run, options)).close()
    else:
        load_run_function(name, run)


def _confine(confinement: ImportConfinement, folder: str) -> None:
    """Hold this process to what the job's processes are held to, as far as this kernel can."""
    readable = readable_paths(confinement.readable)
    variables = bounded_environment((), confinement.environment_variables)
    os.environ.clear()
    os.environ.update({**variables, "TMPDIR": folder, "HOME": folder})
    os.chdir(folder)
    confine(Confinement(confinement.mode, readable=readable), folder)


def outcomes(trial: RewardTrial) -> Iterator[Outcome]:
    """What the reward returns for each row."""
    function = in_row_form(load_function(trial.owner, trial.run))
    for values in trial.rows:
        row = Row(values, **{name: list(map(base64.b64decode, values[name])) for name in SHOWN if name in values})
        if is_async(function):
            yield asyncio.run(evaluate_async(function, row, trial.options, trial.limit_seconds))
        else:
            yield evaluate(function, row, trial.options)


def _answer(answers: IO[str], values: Any) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    add_to_path()
    message = json.loads(requests.readline())
    os.environ.setdefault(keys.ENV_RUN_DIR, message["folder"])  # there is no run yet
    references = [FunctionReference.from_json(fields) for fields in message["references"]]
    if references[0].confinement is not None:
        _confine(references[0].confinement, message["folder"])
    for reference in references:
        _answer(answers, why_not(reference))
    sys.stdout.flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for line in requests:
        for outcome in outcomes(RewardTrial(*json.loads(line))):
            _answer(answers, outcome)
    os._exit(0)  # not the user's exit handlers, nor a thread of theirs


if __name__ == "__main__":
    main()
