"""Data buffers as processes of their own that start in no time, and end with this one."""

import os
from functools import partial

from rljob_worker.databuffer.tests.gang import Gang, as_processes
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.tests.warm import WarmProcess


class BufferProcess(WarmProcess):
    """A data buffer whose supervisor is this process: it ends with its standard input."""

    def __init__(self, gang: Gang, group: str, host: int, **more: str) -> None:
        lifeline, hold = os.pipe()
        said, say = os.pipe()
        environment = {**os.environ, **gang.environment(group, host), LIFELINE_FD: "0", **more}
        super().__init__("rljob_worker.databuffer", environment=environment, stdin=lifeline, stdout=say)
        os.close(lifeline)
        os.close(say)
        self.stdin, self.stdout = os.fdopen(hold, "w"), os.fdopen(said)


warm_processes = partial(as_processes, begin=BufferProcess)
