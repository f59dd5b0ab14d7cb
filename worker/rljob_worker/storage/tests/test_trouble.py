"""Texts of the library's errors, as it wrote them, and what they mean."""

import errno

import pytest

from rljob_worker.storage.address import Address
from rljob_worker.storage.trouble import Conflict, Trouble, failure_of, is_for_good, trouble_of, words_of

ANSWER = "Generic S3 error: Error performing GET http://h/b in 1.4ms - Server returned non-2xx status code: {}"
URL = "s3://bucket/file"


@pytest.mark.parametrize(
    ("text", "trouble", "words"),
    [
        (ANSWER.format("503 Service Unavailable: "), Trouble.PASSING, "503 Service Unavailable"),
        (ANSWER.format("500 Internal Server Error: "), Trouble.PASSING, "500 Internal Server Error"),
        (ANSWER.format("429 Too Many Requests: "), Trouble.PASSING, "429 Too Many Requests"),
        (
            ANSWER.format("403 Forbidden: <Error><Code>ExpiredToken</Code><Message>has expired</Message></Error>"),
            Trouble.PASSING,
            "403 Forbidden (ExpiredToken: has expired)",
        ),
        (
            ANSWER.format(
                "403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code></Error>\n\nDebug source:\nGeneric {"
            ),
            Trouble.DENIED,
            "403 Forbidden (SignatureDoesNotMatch)",
        ),
        (
            ANSWER.format("400 Bad Request: <Error><Type>Sender</Type><Code>Throttling</Code></Error>"),
            Trouble.PASSING,
            "400 Bad Request (Throttling)",
        ),
        (ANSWER.format("400 Bad Request: <Error><Code>BadDigest</Code></Error>"), Trouble.DENIED, "400 Bad Request"),
        (ANSWER.format("401 Unauthorized: "), Trouble.DENIED, "401 Unauthorized"),
        (ANSWER.format("301 Moved Permanently: "), Trouble.DENIED, "301 Moved Permanently"),
        (ANSWER.format("404 Not Found: <Code>NoSuchBucket</Code>"), Trouble.NO_BUCKET, "404 Not Found (NoSuchBucket)"),
        (ANSWER.format("404 Not Found: "), Trouble.ABSENT, "404 Not Found"),
        (ANSWER.format("412 Precondition Failed: "), Trouble.CHANGED, "412 Precondition Failed"),
        (ANSWER.format("416 Range Not Satisfiable: "), Trouble.CHANGED, "416 Range Not Satisfiable"),
        (ANSWER.format("405 Method Not Allowed: "), Trouble.REFUSED, "405 Method Not Allowed"),
        (
            "Generic S3 error: Error performing HEAD http://127.0.0.1:1/d/a in 72.4µs - HTTP error: error sending "
            "request\n\nDebug source:\nGeneric { store",
            Trouble.PASSING,
            "Generic S3 error: Error performing HEAD http://127.0.0.1:1/d/a in 72.4µs - HTTP error: error sending "
            "request",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms - HTTP error: error",
            Trouble.DENIED,
            "the environment holds no credentials, and no server of the cloud hands them out here",
        ),
        (
            "Generic GCS error: Error performing GET http://169.254.169.254/token - Server returned non-2xx status "
            "code: 503 Service Unavailable: ",
            Trouble.PASSING,
            "503 Service Unavailable",
        ),
        ("Generic MicrosoftAzure error: Account must be specified", Trouble.REFUSED, "Generic MicrosoftAzure error: "),
        (
            "Generic error: GET https://account/file?sig=secret in 1ms - HTTP error: reset",
            Trouble.PASSING,
            "Generic error: GET https://account/file in 1ms - HTTP error: reset",
        ),
    ],
)
def test_what_the_store_said(text, trouble, words):
    assert trouble_of(RuntimeError(text)) is trouble
    assert words_of(RuntimeError(text)).startswith(words)
    assert "secret" not in words_of(RuntimeError(text))


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
