"""What an error of the library becomes, and who may do something about it."""

import errno

import pytest

from rljob_worker.storage.address import Address
from rljob_worker.storage.failure import Conflict, failure_of, is_for_good

ANSWER = "Generic S3 error: Error performing GET http://h/b in 1.4ms - Server returned non-2xx status code: {}"
URL = "s3://bucket/file"


class AlreadyExistsError(Exception):
    """As the library calls a put on the condition that nothing is there."""


@pytest.mark.parametrize(
    ("error", "kind", "number", "words", "for_good"),
    [
        (RuntimeError(ANSWER.format("412 Precondition Failed: ")), Conflict, errno.EEXIST, "somebody else", False),
        (AlreadyExistsError("Object at location file already exists"), Conflict, errno.EEXIST, "somebody else", False),
        (
            FileNotFoundError(ANSWER.format("404 Not Found: <Code>NoSuchKey</Code>")),
            FileNotFoundError, errno.ENOENT, "not there (404 Not Found (NoSuchKey))", False,
        ),
        (
            FileNotFoundError(ANSWER.format("404 Not Found: <Code>NoSuchBucket</Code>")),
            OSError, errno.ENODEV, "there is no such bucket (404 Not Found (NoSuchBucket)); make it", True,
        ),
        (
            FileNotFoundError("Generic error: status code: 404 Not Found: <Code>ContainerNotFound</Code>"),
            OSError, errno.ENODEV, "there is no such bucket", True,
        ),
        (
            RuntimeError(ANSWER.format("403 Forbidden: ")),
            PermissionError, errno.EACCES, "the store refuses: 403 Forbidden; the workers' environment needs AWS", True,
        ),
        (
            RuntimeError(ANSWER.format("503 Slow Down: ")),
            OSError, errno.EIO, "the store did not do it: 503 Slow Down", False,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), OSError, errno.ENOSPC, "No space left on device", False),
    ],
)  # fmt: skip
def test_what_an_error_becomes(error, kind, number, words, for_good):
    found = failure_of(error, Address.of(URL), URL)
    assert type(found) is kind and found.errno == number
    assert found.strerror.startswith(words)
    assert is_for_good(found) is for_good
    assert found is error or found.filename == URL
