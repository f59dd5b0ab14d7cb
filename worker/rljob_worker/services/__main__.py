"""`python -m rljob_worker.services PORT`: serves the services of the job in RLJOB_PLAN until it is ended.

PORT 0 takes a free one. A line of JSON says when all of them are healthy: {"ready": "services", "port": 41234}.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import RLJobError
from rljob_worker.launcher.last_words import LastWords, write_last_words
from rljob_worker.lifeline import lifeline_fd
from rljob_worker.runtime.phases import phase
from rljob_worker.services.host import application_of, deploy, ray_environment, start_serve, wait_until_healthy


def main(port: str) -> int:
    _watch_lifeline()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        serve_job(int(port))
    except RLJobError as error:
        write_last_words(LastWords(int(error.exit_code), cause=f"{type(error).__name__}: {error}"))
        return int(error.exit_code)
    except Exception as error:  # of Ray, which has exceptions for many things that end well the next time
        logging.exception("the services cannot be started")
        write_last_words(LastWords(int(ExitCode.RETRY), cause=f"{type(error).__name__}: {error}"))
        return int(ExitCode.RETRY)
    threading.Event().wait()
    return int(ExitCode.DONE)


def serve_job(port: int) -> None:
    """Start all services and say so."""
    services = Plan.model_validate_json(Path(os.environ[keys.ENV_PLAN]).read_bytes()).spec.services
    os.environ |= ray_environment(Path(os.environ[keys.ENV_SERVICES_TOKEN_FILE]).read_text().strip())
    with phase("applications"):
        applications = {service.name: application_of(service) for service in services}  # what is wrong is known soon
    port = start_serve(services, Path(os.environ[keys.ENV_SERVICES_SCRATCH]), port)
    with phase("services") as told:
        from ray import serve

        deploy(applications)
        wait_until_healthy(services, lambda: serve.status().applications)
        told.found = ", ".join(service.name for service in services)
    print(json.dumps({"ready": "services", "port": port}), flush=True)


def _watch_lifeline() -> None:
    """Ends this process with the one that started it, whatever Ray's threads do."""
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
