"""The worker: one process, one accelerator, its part of the DAG.

    environment -> world (torch.distributed) -> engines and stages -> restore -> steps

Read `Worker.step` first: take, run, hand on, for each stage of the group's schedule; then obey, save and report.
"""
