"""Seconds of a step with a decoder that waits for each picture, beside those with one that does not, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from figures import Figure

from picture_steps.jobs import picture_job, start_picture_run, write_rows
from picture_steps.pictures import photograph

WAIT_SECONDS, STAGE_SECONDS = 0.02, 2.0
PROMPTS, STEPS, SIDE = 16, 14, 84
LAYOUTS = {"one-group": ["train"], "two-groups": ["rollout", "train"]}


def measure(model: Path, folder: Path, pairs: int, layouts: Sequence[str]) -> list[Figure]:
    # no picture comes twice: pixels are kept, and what is kept needs no decoder
    write_rows(folder / "small.parquet", [photograph(SIDE, seed) for seed in range(PROMPTS * STEPS)])
    shape = {"prompts": PROMPTS, "group_size": 2, "most_pixels": SIDE * SIDE, "steps": STEPS}
    figures = []
    for layout in layouts:
        groups = LAYOUTS[layout]
        job = picture_job(model, folder / "small.parquet", groups=groups, **shape)
        ratios = []
        for pair in range(pairs):
            seconds = []
            for wait in (0.0, WAIT_SECONDS):
                where = folder / f"hidden-{groups[0]}-{pair}-{wait}"
                run = start_picture_run(where, job, {"stage": STAGE_SECONDS, "picture": wait})
                run.finish()
                seconds.append(_step_seconds(run.updates()))
            ratios.append(seconds[1] / seconds[0])
            print(f"  {layout}: {seconds[0]:.3f} s a step, {seconds[1]:.3f} s, {ratios[-1] - 1:+.1%}", flush=True)
        figures.append(
            Figure(
                f"hidden, {layout}: a step, over one whose decoder does not wait", statistics.median(ratios), most=1.03
            )
        )
        print(f"hidden, {layout}: median {figures[-1].value - 1:+.1%}; held to +3 %", flush=True)
    return figures


def _step_seconds(updates: dict[int, float]) -> float:
    """Median, without the first two steps, whose pictures nothing runs before."""
    steps = sorted(updates)[2:]
    return statistics.median(updates[step + 1] - updates[step] for step in steps[:-1])
