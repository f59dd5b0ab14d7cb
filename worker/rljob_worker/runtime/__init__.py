"""The worker: one process, one accelerator, its part of the DAG.

    environment -> world (torch.distributed) -> engines and stages -> restore -> loop

Read `loop.py` first: a step is take, run, hand on, for each stage of the group's schedule.
"""
