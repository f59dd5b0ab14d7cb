"""A look at data and models in stores and on the hub, in a process of its own that has a time limit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem
from rljob_worker.process.lifeline import dying_with_me
from rljob_worker.rehearsal.finding import Finding, Findings

LOOK_SECONDS = 30.0


def check_remote_inputs(
    spec: RLJobSpec, folder: Path, environment: Mapping[str, str], limit_seconds: float
) -> Findings | str:
    """What there is to say of all data and models; or why nothing was seen.

    environment: of a worker, which opens the stores.
    """
    question = json.dumps({"spec": spec.to_json(), "folder": str(folder)})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "rljob_worker.rehearsal.inputs.input_check"],
            input=question.encode(),
            stdout=subprocess.PIPE,
            env=dict(environment),
            timeout=limit_seconds,
            start_new_session=True,  # Ctrl-C is for the process that waits for it
            preexec_fn=dying_with_me(signal.SIGKILL),
        )
    except subprocess.TimeoutExpired:
        return f"what is in stores and on the hub, which took longer than {limit_seconds:g} s"
    if done.returncode:
        return f"what is in stores and on the hub: the process that looks ended with {done.returncode}"
    return findings_from_json(json.loads(done.stdout))


def findings_to_json(findings: Findings) -> dict[str, Any]:
    return {
        "found": [_to_json(item) for item in findings.found],
        "unseen": list(findings.unseen),
        "lacking": [_to_json(item) for item in findings.lacking],
        "warned": list(findings.warned),
        "rows": list(findings.rows),
    }


def findings_from_json(record: Mapping[str, Any]) -> Findings:
    """The inverse of `to_json`."""
    result, lacking = (tuple(map(_finding_of, record[name])) for name in ("found", "lacking"))
    return Findings(result, tuple(record["unseen"]), lacking, tuple(record["warned"]), tuple(record["rows"]))


def _to_json(finding: Finding) -> dict[str, Any]:
    return {"problem": asdict(finding.problem), "code": int(finding.code)}


def _finding_of(record: Mapping[str, Any]) -> Finding:
    return Finding(Problem(**record["problem"]), ExitCode(record["code"]))
