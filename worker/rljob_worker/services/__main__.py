"""`python -m rljob_worker.services PORT [SERVICE ...]`: serves these services of the job in RLJOB_PLAN, by default all,
until it is ended, or one of them is given up.

PORT 0 takes a free one. A line of JSON says when all of them are healthy: {"ready": "services", "port": 41234}. While
they are the gate says so, too, to probes. RLJOB_LISTEN is the address, by default the loopback.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import RLJobError
from rljob_worker.process.last_words import TERMINATION_FILE, LastWords, termination_log, write_last_words
from rljob_worker.process.lifeline import lifeline_fd
from rljob_worker.process.marked_processes import ENV_MARK
from rljob_worker.process.start_phases import phase
from rljob_worker.services.gate import healthy_file
from rljob_worker.services.health import changes_of_health
from rljob_worker.services.host import LOOPBACK, application_of, deploy, ray_environment, start_serve
from rljob_worker.users_code.search_path import add_to_path


def main(port: str, *names: str) -> int:
    if lifeline_fd() is None:
        _live_in_a_container()
    _watch_lifeline()
    add_to_path()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        serve_job(int(port), names)
    except RLJobError as error:
        write_last_words(LastWords(int(error.exit_code), cause=f"{type(error).__name__}: {error}"))
        return int(error.exit_code)
    except Exception as error:  # of Ray, which has exceptions for many things that end well the next time
        logging.exception("the services cannot be served")
        write_last_words(LastWords(int(ExitCode.RETRY), cause=f"{type(error).__name__}: {error}"))
        return int(ExitCode.RETRY)
    raise AssertionError("services have no good end")


def serve_job(port: int, names: Collection[str]) -> None:
    """Serve these services, or all, and say whether they are healthy, until one of them is given up."""
    plan = Plan.model_validate_json(Path(os.environ[keys.ENV_PLAN]).read_bytes())
    services = [service for service in plan.spec.services if not names or service.name in names]
    plans = [plan.service(service.name) for service in services]
    scratch = Path(os.environ[keys.ENV_SERVICES_SCRATCH])
    healthy_file(scratch).unlink(missing_ok=True)
    os.environ |= ray_environment(Path(os.environ[keys.ENV_SERVICES_TOKEN_FILE]).read_text().strip(), scratch)
    with phase("applications"):
        # what is wrong with them is known soon
        applications = {item.name: application_of(service, item) for service, item in zip(services, plans, strict=True)}
    port = start_serve(plans, scratch, os.environ.get(keys.ENV_LISTEN, LOOPBACK), port)
    with phase("services") as start_phase:
        from ray import serve

        deploy(applications)
        changes = changes_of_health(services, lambda: serve.status().applications)
        next(changes)
        start_phase.found = ", ".join(service.name for service in services)
    healthy_file(scratch).touch()
    print(json.dumps({"ready": "services", "port": port}), flush=True)
    _tell_gate(changes, healthy_file(scratch))


def _tell_gate(changes: Iterator[bool], healthy: Path) -> None:
    """A probe is informed within a look; a service that does not answer has no name in a cluster."""
    for is_healthy in changes:
        if is_healthy:
            healthy.touch()
        else:
            healthy.unlink(missing_ok=True)


def _live_in_a_container() -> None:
    """Which dies as a whole: as its process 1 this one has no default for SIGTERM, and nobody has made what a
    supervisor makes."""
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    os.environ.setdefault(ENV_MARK, secrets.token_hex(8))
    if (log := termination_log()) is not None:
        os.environ.setdefault(TERMINATION_FILE, str(log))


def _watch_lifeline() -> None:
    """Ends this process with the one that started it, no matter what Ray's threads do."""
    descriptor = lifeline_fd()
    if descriptor is None:
        return

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os._exit(int(ExitCode.INTERRUPTED))

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
