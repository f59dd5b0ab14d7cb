"""What a page shows of a run: its files, thinned to what a browser draws at once."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rljob_api.v1alpha1.rollout import RolloutSpec
from rljob_worker.metrics.finals import final_figures
from rljob_worker.metrics.health import health_of, reward_weights
from rljob_worker.metrics.idle import RECENT_STEPS, has_idle_seconds, idle_sentence
from rljob_worker.metrics.lines import records_in
from rljob_worker.metrics.response_lengths import has_lengths, lengths_sentence
from rljob_worker.metrics.tables import flattened
from rljob_worker.metrics.token_stretches import stretches_text
from rljob_worker.rundir.directory import METRICS, SAMPLES, RunDirectory, RunNote

MAX_POINTS = 1000
"""Points of a curve, at most; longer runs show means of neighbouring steps."""
MAX_SAMPLES = 1000
"""Rows: those of the newest steps, and of the first."""
MAX_SAMPLE_CHARACTERS = 4000
"""Characters shown of a prompt or response, at most."""
MAX_SAMPLE_MESSAGES = 64
MAX_VIDEOS = 32
"""Videos: a quarter of the first, the others of the newest steps."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """One run."""

    name: str
    state: str
    """`Succeeded after 200 of 200 steps`; of a run that nobody supervises `200 of 200 steps`."""
    steps: list[float]
    metrics: dict[str, list[float | None]]
    """One value for each of `steps`, None where a step has none."""
    stages: list[str]
    samples: list[dict[str, Any]]
    config: dict[str, str]
    """The job as `algorithm.loss.clipLow` -> `0.2`."""
    waits: str = ""
    """Who waited for what, in a disaggregated job."""
    lengths: str = ""
    """How response lengths are spread, or what was carried on."""
    warned: list[str] = field(default_factory=list)
    """What keeps it from learning."""
    finals: dict[str, float] = field(default_factory=dict)
    """Its figures at the end, by metric."""


def read_content(directory: Path) -> RunContent:
    """The run as its files are now; what is not there yet is empty."""
    records = list(records_in(directory / METRICS))
    recent = [record for record in records if has_idle_seconds(record) or has_lengths(record)][-RECENT_STEPS:]
    steps, metrics = curves(records)
    plan, spec = _json(directory / "plan.json"), job_spec(directory)
    return RunContent(
        name=directory.name,
        state=_state(RunDirectory(directory).read_note(), plan, steps),
        steps=steps,
        metrics=metrics,
        stages=[stage["name"] for stage in plan.get("stages", ())],
        samples=shown_samples(records_in(directory / SAMPLES)),
        config=dict(flattened(spec)),
        waits=idle_sentence(recent),
        lengths=lengths_sentence(recent, max_response_tokens(spec)),
        warned=health_of(records, reward_weights(spec)),
        finals=final_figures(records),
    )


def max_response_tokens(spec: Mapping[str, Any]) -> int:
    """The longest response that a job allows. spec: as in job.yaml, without what has its default."""
    default: int = RolloutSpec.model_fields["max_response_tokens"].default
    value = (spec.get("rollout") or {}).get("maxResponseTokens")
    return value if isinstance(value, int) else default


def job_spec(directory: Path) -> dict[str, Any]:
    """`spec` of a run's job.yaml; {} where it has none yet."""
    spec = _job(directory / "job.yaml").get("spec")
    return spec if isinstance(spec, dict) else {}


def page_data(runs: Iterable[RunContent]) -> str:
    """JSON that may stand in a <script>: without `<`, no text of a run ends the script or opens a comment in it."""
    return json.dumps([asdict(run) for run in runs]).replace("<", "\\u003c")


def curves(records: Iterable[Mapping[str, Any]]) -> tuple[list[float], dict[str, list[float | None]]]:
    """Steps, and each metric's value at each: at most MAX_POINTS of them, means over as many neighbours as it takes."""
    steps, columns = list[float](), dict[str, list[float | None]]()
    for record in records:
        for name in record:
            if name != "step" and name not in columns:
                columns[name] = [None] * len(steps)
        steps.append(record["step"])
        for name, values in columns.items():
            values.append(_number(record.get(name)))
    width = math.ceil(len(steps) / MAX_POINTS)
    if width <= 1:
        return steps, columns
    return _means(steps, width), {name: _means(values, width) for name, values in columns.items()}  # type: ignore


def _means(values: list[float | None], width: int) -> list[float | None]:
    parts = (values[first : first + width] for first in range(0, len(values), width))
    there = ([value for value in part if value is not None] for part in parts)
    return [sum(part) / len(part) if part else None for part in there]


def shown_samples(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples of the first and the newest steps of a long run, without their tokens."""
    first, newest = list[dict[str, Any]](), list[dict[str, Any]]()
    for record in records:
        short = {name: _short(name, value) for name, value in record.items() if name != "tokens"}
        (first if len(first) < MAX_SAMPLES // 4 else newest).append(short)
        if len(newest) > 2 * MAX_SAMPLES:
            del newest[: len(newest) - MAX_SAMPLES]
    samples = first + newest[-(MAX_SAMPLES - len(first)) :]
    for sample in [sample for sample in samples if "video" in sample][MAX_VIDEOS // 4 : -(3 * MAX_VIDEOS // 4)]:
        del sample["video"]
    return samples


def _state(note: RunNote | None, plan: Mapping[str, Any], steps: list[float]) -> str:
    """note: None where no supervisor is, as on a cluster."""
    done = int(steps[-1]) if steps else 0
    total = note.total_steps if note else plan.get("spec", {}).get("stop", {}).get("steps")
    progress = f"{done} of {total} steps" if total else f"{done} steps"
    if note is None:
        return progress
    return f"{note.phase} after {progress}" + f": {note.cause}" * bool(note.cause)


def _short(name: str, value: Any) -> Any:
    if name == "versions":
        return stretches_text(value)
    if name == "video":
        return value
    if name == "messages":
        return [{key: _short(key, part) for key, part in message.items()} for message in value[:MAX_SAMPLE_MESSAGES]]
    if isinstance(value, str) and len(value) > MAX_SAMPLE_CHARACTERS:
        return f"{value[:MAX_SAMPLE_CHARACTERS]}… ({len(value)} characters)"
    return value


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def _job(path: Path) -> dict[str, Any]:
    try:
        result = yaml.safe_load(path.read_text())
    except (FileNotFoundError, yaml.YAMLError):
        return {}
    return result if isinstance(result, dict) else {}
