"""Private memory of all processes of a run, over many steps with pictures of 1 MB that are never the same in a row."""

from __future__ import annotations

from pathlib import Path

from figures import Figure
from private_memory import MIB

from picture_steps.jobs import picture_job, start_picture_run, write_rows
from picture_steps.pictures import noise

SIDE, MOST_PIXELS, NUM_PICTURES = 590, 3136, 64


def measure(model: Path, folder: Path, steps: int) -> list[Figure]:
    write_rows(folder / "noise.parquet", [noise(SIDE, SIDE, seed) for seed in range(NUM_PICTURES)])
    shape = {"prompts": 2, "group_size": 2, "most_pixels": MOST_PIXELS}
    job = picture_job(model, folder / "noise.parquet", steps=steps, groups=["rollout", "train"], **shape)
    run = start_picture_run(folder / "memory", job)
    sizes = {}
    for step in (*range(steps // 10, steps, steps // 10), steps - steps // 100):
        run.wait_for_step(step)
        sizes[step] = run.private_bytes() / MIB
        print(f"  step {step}: {sizes[step]:.1f} MiB private in all processes", flush=True)
    run.finish()
    later = [size for step, size in sizes.items() if step >= 2 * steps // 10]
    print(f"memory: from step {2 * steps // 10} on {min(later):.1f} to {max(later):.1f} MiB; held to 3 % and 2 MiB")
    name = "memory: the most, less 2 MiB, over that after a fifth of the steps"
    return [Figure(name, (max(later) - 2) / later[0], most=1.03)]
