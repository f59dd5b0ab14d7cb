"""Tests of following the log of the lead pod over attempts."""

import threading

from rljob.client import Client
from rljob.errors import Unreachable
from rljob.following import LeadLog
from rljob.tests.builders import job
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS


class Logs(Client):
    """One log per attempt; a log that is an error breaks off."""

    def __init__(self, *attempts):
        self.attempts = list(attempts)
        self.read = threading.Event()

    def logs(self, name, *, follow=False):
        assert follow
        lines = self.attempts.pop(0)
        for line in lines:
            if isinstance(line, Exception):
                raise line
            yield line
        self.read.set()


def test_the_log_of_every_attempt_is_shown_once():
    said, logs = [], Logs(["a", "b"], ["c"])
    log = LeadLog(logs, said.append)
    log.notice(job(phase="Pending"))
    assert said == [] and len(logs.attempts) == 2
    log.notice(job(phase="Running", attempt=1))
    assert logs.read.wait(TEST_TIMEOUT_SECONDS)
    log.notice(job(phase="Running", attempt=1))
    assert said == ["a", "b"] and len(logs.attempts) == 1
    log.notice(job(phase="Running", attempt=2))
    log.close()
    assert said == ["a", "b", "c"]


def test_a_log_that_breaks_off_says_so_and_ends_nothing():
    said = []
    log = LeadLog(Logs(["a", Unreachable("reset")]), said.append)
    log.notice(job(phase="Running", attempt=1))
    log.close(30)
    assert said == ["a", "(no more of the log: reset)"]
