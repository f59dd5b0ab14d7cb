"""The text of docs/conditions.md, from the reasons: `python -m rljob_operator.reporting.conditions_reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from rljob_api.v1alpha1.status import ConditionType, Phase
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.reporting.events import EventReason
from rljob_operator.states.situation.conditions import Reason

HEADER = """\
# Phases, conditions, events

Made by `make docs`. Phases are for people; alerts and scripts look at conditions:

<!-- not run: needs a cluster -->
```sh
kubectl wait rlj/NAME --for=condition=Complete --timeout=24h
kubectl get rlj NAME -o jsonpath='{.status.conditions[?(@.type=="Degraded")].message}'
```

`Complete` and `Failed` are final. A reason is a stable word; the message next to it says what was found and what to do.
`status.lastFailure` keeps the last failure (attempt, pod, container, exit code, last words) when its pods are gone.
"""

PHASES: Mapping[Phase, str] = {
    "Pending": "Not started: refused for now, in a queue, or waiting for the pods of the last attempt to go.",
    "Starting": "Pods of an attempt are made, placed and started.",
    "Running": "Every pod is ready.",
    "Restarting": "The attempt failed; its pods go, and another begins from the last checkpoint.",
    "Suspending": "Pods write their checkpoints and go.",
    "Suspended": "No pod is left, and the job waits.",
    "Succeeded": "Done.",
    "Failed": "No attempt follows.",
}

# The first reason of a condition in the order of `Reason`, which groups them.
_CONDITIONS: Mapping[ConditionType, tuple[Reason, str]] = {
    "Accepted": (Reason.VALID, "Whether the job can run, by its spec and by what it needs around it."),
    "Suspended": (Reason.NOT_SUSPENDED, "Whether the job has given its pods back."),
    "QuotaReserved": (Reason.NO_QUEUE, "Whether the queue has let the job in."),
    "Scheduled": (Reason.NOT_STARTED, "Whether every pod has a node."),
    "ServicesReady": (Reason.SERVICES_HEALTHY, "Whether every model beside the job answers; for jobs with `services`."),
    "GeneratorsReady": (
        Reason.ALL_GENERATORS_READY,
        "Whether every pod of the elastic group is ready; for jobs with one.",
    ),
    "AgentsReady": (
        Reason.ALL_AGENTS_READY,
        "Whether every pod of agents is ready; for jobs with `agentPool.workerGroup`.",
    ),
    "Ready": (Reason.NO_PODS, "Whether every pod of the gang is ready."),
    "Progressing": (Reason.NOT_RUNNING, "Whether steps are finished; unknown while the lead pod does not answer."),
    "Healthy": (
        Reason.NO_WARNING,
        "Whether the policy learns, as far as its metrics say; once a step has ended. My reward does not rise: "
        "reward-does-not-rise.md.",
    ),
    "Degraded": (Reason.AS_EXPECTED, "Whether something is wrong, or was in the last attempt."),
    "Complete": (Reason.NOT_FINISHED, "Whether the job has succeeded."),
    "Failed": (Reason.NOT_FINISHED, "Whether the job has failed; the reasons of `Complete` and `Failed` are one list."),
}


def reasons_of(type_: ConditionType) -> list[Reason]:
    """The reasons that are listed under a condition."""
    everything = list(Reason)
    start = everything.index(_CONDITIONS[type_][0])
    later = [at for first, _ in _CONDITIONS.values() if (at := everything.index(first)) > start]
    return everything[start : min(later, default=len(everything))]


def conditions_text() -> str:
    """The whole page, in Markdown."""
    sections = [HEADER, "## Phases\n", _table("phase", PHASES.items())]
    for type_, (_, text) in _CONDITIONS.items():
        sections.append(f"## `{type_}`\n\n{text}\n")
        if type_ != "Complete":
            rows = ((str(reason), reason.meaning) for reason in reasons_of(type_))
            sections.append(_table("reason", rows))
    sections += ["## Events\n", _EVENTS, _table("reason", ((str(item), item.meaning) for item in EventReason))]
    sections += ["## Exit codes of workers\n", _table("code", ((str(int(code)), code.meaning) for code in ExitCode))]
    return "\n".join(sections)


_EVENTS = """\
Shown by `kubectl describe rlj`. Besides those below, every reason that makes `Accepted`, `QuotaReserved`, `Scheduled`,
`ServicesReady`, `GeneratorsReady`, `AgentsReady`, `Progressing` or `Degraded` bad news is an event of its own name.
"""


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {title} | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(conditions_text())
