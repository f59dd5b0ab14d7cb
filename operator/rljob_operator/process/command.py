"""The command line: read the settings, run one replica, say with the exit code how it ended."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_operator.cluster.lease import LeaseLost
from rljob_operator.cluster.login import Login, NoLogin
from rljob_operator.guard import EndedByItself
from rljob_operator.process.leader import Reconcile, ReconcilerContext
from rljob_operator.process.run import Operator
from rljob_operator.process.settings import BadSettings, OperatorSettings, load_settings
from rljob_operator.reporting.logs import setup_logs

logger = logging.getLogger("rljob_operator")

_RECURSION_LIMIT = 12_000
"""The API server takes objects that are nested 10,000 deep, of any user who may make RLJobs, and neither kopf nor our
client may fail to read a list because of one.  json recurses once a level, which takes less than 2 MiB of stack."""


def run_command(make_reconcile: Callable[[ReconcilerContext], Reconcile], argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a stop that was asked for, 2 for bad input, 1 when the process must not go on."""
    parser = argparse.ArgumentParser(prog="rljob_operator", description="Runs RLJobs on a Kubernetes cluster.")
    parser.add_argument("--config", type=Path, help="settings, as YAML; without it, every default")
    parser.add_argument("--kubeconfig", type=Path, help="the cluster; without it, the one this pod runs in")
    arguments = parser.parse_args(argv)
    try:
        settings = load_settings(arguments.config)
    except BadSettings as error:
        print(error, file=sys.stderr)
        return 2
    setup_logs(settings.log_format, settings.log_level)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    return asyncio.run(_run(settings, Login(arguments.kubeconfig), make_reconcile))


async def _run(
    settings: OperatorSettings, login: Login, make_reconcile: Callable[[ReconcilerContext], Reconcile]
) -> int:
    code = 0
    try:
        await Operator(settings, login, make_reconcile).run()
    except* NoLogin as group:
        code = _log_errors(group, 2)
    except* (LeaseLost, EndedByItself) as group:
        code = _log_errors(group, 1)
    return code


def _log_errors(group: BaseExceptionGroup[Exception], code: int) -> int:
    for error in group.exceptions:
        logger.error("%s", error)
    return code
