"""What goes wrong between a laptop and a cluster; every error has the exit code that the command ends with."""

from __future__ import annotations

from rljob_api.vocabulary.exit_codes import ExitCode


class ClusterError(Exception):
    """The API server did not do what it was asked, and would not do it for asking again."""

    exit_code = ExitCode.INVALID_JOB


class NotThere(ClusterError):
    """The object is not there, or the cluster does not know its kind."""


class AlreadyThere(ClusterError):
    """An object of this name is there."""


class Unreachable(ClusterError):
    """No answer, or a failure of the server's own: the same request may succeed later."""

    exit_code = ExitCode.RETRY
