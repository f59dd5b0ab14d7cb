"""Errors a process of the job ends with, each with the exit code the operator and the supervisor act on.

    RLJobError
    ├── InvalidJob          64  the job asks for something impossible; retrying cannot help
    │   ├── WrongField          a field of it does, and the code that raises it knows which
    │   └── NotHere             this machine does not get what it asks for; another one may
    ├── BadData             65  dataset, model file or reward is wrong; retrying cannot help
    ├── StorageError        74  disk full, unwritable, lost
    ├── PeerLost            75  a process this one talks to is gone; the gang restarts
    ├── DeadlineExceeded    75  a bounded wait ran out; the gang restarts
    ├── EngineBroken        75  a library that generates failed in the middle of it; the gang restarts
    └── StopRequested       76  checkpointed and stopped on request

Every message names what failed, where, and the fix. Any other exception is a bug of ours (70).
"""

from rljob_api.vocabulary.exit_codes import ExitCode


class RLJobError(Exception):
    """An end of the process with a known cause."""

    exit_code: ExitCode = ExitCode.BUG


class InvalidJob(RLJobError, ValueError):
    """The job cannot run as written."""

    exit_code = ExitCode.INVALID_JOB


class WrongField(InvalidJob):
    """A field of the job does not go with what was found elsewhere."""

    def __init__(self, message: str, field: str) -> None:
        """field: without `spec.` before it."""
        super().__init__(message)
        self.field = field


class NotHere(InvalidJob):
    """This machine does not get what the job asks for."""


class BadData(RLJobError, ValueError):
    """Data, a reward's answer or a model file is not what the job says it is."""

    exit_code = ExitCode.BAD_DATA


class StorageError(RLJobError, OSError):
    """A file could not be written or read back."""

    exit_code = ExitCode.STORAGE


class PeerLost(RLJobError, ConnectionError):
    """A process of the gang no longer answers."""

    exit_code = ExitCode.RETRY


class DeadlineExceeded(RLJobError, TimeoutError):
    """A bounded wait ended without what it waited for."""

    exit_code = ExitCode.RETRY


class EngineBroken(RLJobError):
    """A library that generates failed in a way that says nothing of the job."""

    exit_code = ExitCode.RETRY


class StopRequested(RLJobError):
    """The job was asked to stop and has a checkpoint to go on from."""

    exit_code = ExitCode.STOPPED
