"""The engines on one GPU: generation, update and sync of models of 0.2 B to 8 B shapes with random weights.

    python benchmarks/gpu.py --write        one CUDA device, about six minutes, no network
    python benchmarks/gpu.py --rehearse     the same parts on a CPU with a tiny model, in seconds

`generation`: 64 rows, 8 to a prompt of 256 tokens, 192 tokens each, in BFloat16; step by step and recorded as CUDA
graphs (`rollout.engineOptions.enforceEager: false`). `first` is the first generation, with what has to be made only
once. `freed by sleep` is what the device has more after weights and cache went to sleep. `update`: 16 rows of 1,024
tokens in two micro-batches, FSDP on one rank, BFloat16 with weights and optimizer in Float32; MFU is the model's own
sums, nothing that is computed again, by what the device can do at most. `kept` and `peak` are of torch's allocator,
beside what a plan says. `sync`: from the engine that trains to the one that generates, in one process.

A part that fails says so in its line and prints why; the others go on. --write puts the tables into docs/benchmarks.md.
On a borrowed machine, whose files do not come back: add `&& cp docs/benchmarks.md $OUT/`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import docs_section
import torch
import torch.distributed as dist
import transformers
from on_device.parts import ON_DEVICE, REHEARSAL
from on_device.report import report


def heading() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU, rehearsed"
    return f"{device}, torch {torch.__version__}, transformers {transformers.__version__}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.rehearse == options.write:
        parser.error("one of --rehearse and --write")
    if not (options.rehearse or torch.cuda.is_available()):
        parser.error("torch sees no CUDA device here; --rehearse needs none")
    if not options.rehearse:
        # as in a worker: FSDP's collectives are on the device
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    place, generating, training = (
        (REHEARSAL, ("tiny",), ("tiny",)) if options.rehearse else (ON_DEVICE, ("0.6B", "8B"), ("210M", "0.6B", "1.7B"))
    )
    started, lines = time.perf_counter(), [heading(), ""]
    with tempfile.TemporaryDirectory() as folder:
        for line in report(place, generating, training, Path(folder)):
            print(line, flush=True)
            lines.append(line)
    print(f"\n{time.perf_counter() - started:.0f} s")
    if options.write:
        docs_section.write("gpu", lines)


if __name__ == "__main__":
    main()
