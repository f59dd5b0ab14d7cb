"""What to say of a job that is followed: a line for each thing that changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rljob.job import Job


def news(before: Job | None, job: Job) -> Iterator[str]:
    """Lines on what is new since the look before."""
    if before is None or (job.phase, job.attempt) != (before.phase, before.attempt):
        attempt = f", attempt {job.attempt}" if job.attempt else ""
        yield f"{job.name}: {job.phase.lower()}{attempt}, {job.ready} pods ready"
    if job.reason and (before is None or (job.reason, job.message) != (before.reason, before.message)):
        yield f"{job.name}: {job.reason}: {job.message}"
    if job.step and (before is None or job.step != before.step):
        yield step_line(job)


def step_line(job: Job) -> str:
    """The last step in one line, as `rljob run` has it."""
    figures = {"reward": job.reward, **{name: job.metrics.get(key) for name, key in _FIGURES.items()}}
    parts = [f"step {job.step}/{job.total_steps}"]
    parts += [f"{name} {value:.3g}" for name, value in figures.items() if value is not None]
    return "  ".join(parts)


_FIGURES = {
    "validation": "validation/accuracy",
    "kl": "kl/reference",
    "length": "response_length/mean",
    "tokens/s": "throughput/tokens_per_second",
}
"""Names of metrics as people see them."""


def last_words(job: Job) -> str:
    """How it ended."""
    if job.phase == "Failed":
        return f"{job.name}: failed after {job.step} of {job.total_steps} steps: {job.reason}: {job.message}"
    return f"{job.name}: {job.phase.lower()} after {job.step} of {job.total_steps} steps"
