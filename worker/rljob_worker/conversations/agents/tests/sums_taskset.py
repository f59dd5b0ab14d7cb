"""Tasks of verifiers 0.4, whose environment is found by the name of this module."""

import json
import os

import verifiers.v1 as vf

__all__ = ["SumTaskset"]


class SumTask(vf.Task):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip().endswith("5"))


class SumTaskset(vf.Taskset[SumTask]):
    """One task, that of the trajectory."""

    def load(self):
        with open(os.environ["RLJOB_TASK_FILE"]) as file:
            messages = json.load(file)["messages"]
        yield SumTask(vf.TaskData(prompt=messages[-1]["content"]), self.config.task)
