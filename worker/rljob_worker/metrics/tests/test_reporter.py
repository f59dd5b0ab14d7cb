"""Snapshots from a worker to its launcher."""

import json
import os

from rljob_worker.metrics.reporter import Reporter


def pipe():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    return read_end, write_end


def read_all(fd):
    data = b""
    try:
        while chunk := os.read(fd, 1 << 20):
            data += chunk
    except BlockingIOError:
        pass
    return data


def test_a_snapshot_is_one_line():
    read_end, write_end = pipe()
    Reporter(write_end).send({"step": 3.0}, {"phase": "Running"})
    assert json.loads(read_all(read_end)) == {"metrics": {"step": 3.0}, "progress": {"phase": "Running"}}
    os.close(read_end), os.close(write_end)


def test_a_launcher_that_does_not_read_costs_snapshots_and_no_torn_line():
    # each line is larger than the pipe (64 KiB): the first is torn, finished later, and only whole lines arrive
    read_end, write_end = pipe()
    reporter = Reporter(write_end)
    sent = {f"metric/{n}": float(n) for n in range(10_000)}
    received = b""
    for step in range(6):
        reporter.send(sent | {"step": step})
        if step >= 2:
            received += read_all(read_end)
    for _ in range(9):
        reporter.send({"step": 99.0})
        received += read_all(read_end)
    lines = [json.loads(line) for line in received.splitlines()]
    steps = [line["metrics"]["step"] for line in lines]
    assert steps[0] == 0 and steps[-1] == 99
    assert 1 not in steps
    os.close(read_end), os.close(write_end)


def test_a_dead_launcher_is_no_error():
    read_end, write_end = pipe()
    os.close(read_end)
    reporter = Reporter(write_end)
    reporter.send({"step": 1.0})
    reporter.send({"step": 2.0})
    os.close(write_end)


def test_without_a_launcher_nothing_happens():
    Reporter(None).send({"step": 1.0})
