"""A data buffer can be stopped while it starts."""

import signal
import subprocess
import sys


def test_sigterm_ends_a_data_buffer_that_still_imports():
    """As process 1 of a container nothing but a handler of its own ends it; 143 shows that there is one."""
    command = [sys.executable, "-X", "importtime", "-m", "rljob_worker.databuffer"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if b"pyarrow.lib" in line)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
