"""Texts of the library's errors, as it wrote them, and what they mean."""

import errno

import pytest

from rljob_worker.storage.address import Address
from rljob_worker.storage.store_errors import (
    StoreErrorKind,
    VersionConflict,
    error_kind_of,
    failure_of,
    is_for_good,
    words_of,
)

ANSWER = "Generic S3 error: Error performing GET http://h/b in 1.4ms - Server returned non-2xx status code: {}"
URL = "s3://bucket/file"


@pytest.mark.parametrize(
    ("text", "trouble", "words"),
    [
        (ANSWER.format("503 Service Unavailable: "), StoreErrorKind.PASSING, "503 Service Unavailable"),
        (ANSWER.format("500 Internal Server Error: "), StoreErrorKind.PASSING, "500 Internal Server Error"),
        (ANSWER.format("429 Too Many Requests: "), StoreErrorKind.PASSING, "429 Too Many Requests"),
        (
            ANSWER.format("403 Forbidden: <Error><Code>ExpiredToken</Code><Message>has expired</Message></Error>"),
            StoreErrorKind.PASSING,
            "403 Forbidden (ExpiredToken: has expired)",
        ),
        (
            ANSWER.format(
                "403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code></Error>\n\nDebug source:\nGeneric {"
            ),
            StoreErrorKind.DENIED,
            "403 Forbidden (SignatureDoesNotMatch)",
        ),
        (
            ANSWER.format("400 Bad Request: <Error><Type>Sender</Type><Code>Throttling</Code></Error>"),
            StoreErrorKind.PASSING,
            "400 Bad Request (Throttling)",
        ),
        (
            ANSWER.format("400 Bad Request: <Error><Code>BadDigest</Code></Error>"),
            StoreErrorKind.DENIED,
            "400 Bad Request",
        ),
        (ANSWER.format("401 Unauthorized: "), StoreErrorKind.DENIED, "401 Unauthorized"),
        (ANSWER.format("301 Moved Permanently: "), StoreErrorKind.DENIED, "301 Moved Permanently"),
        (
            ANSWER.format("404 Not Found: <Code>NoSuchBucket</Code>"),
            StoreErrorKind.NO_BUCKET,
            "404 Not Found (NoSuchBucket)",
        ),
        (ANSWER.format("404 Not Found: "), StoreErrorKind.ABSENT, "404 Not Found"),
        (ANSWER.format("412 Precondition Failed: "), StoreErrorKind.CHANGED, "412 Precondition Failed"),
        (ANSWER.format("416 Range Not Satisfiable: "), StoreErrorKind.CHANGED, "416 Range Not Satisfiable"),
        (ANSWER.format("405 Method Not Allowed: "), StoreErrorKind.REFUSED, "405 Method Not Allowed"),
        (
            "Generic S3 error: Error performing HEAD http://127.0.0.1:1/d/a in 72.4µs - HTTP error: error sending "
            "request\n\nDebug source:\nGeneric { store",
            StoreErrorKind.PASSING,
            "Generic S3 error: Error performing HEAD http://127.0.0.1:1/d/a in 72.4µs - HTTP error: error sending "
            "request",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms - HTTP error: error",
            StoreErrorKind.DENIED,
            "the environment holds no credentials, and no server of the cloud hands them out here",
        ),
        (
            "Generic GCS error: Error performing GET http://169.254.169.254/token - Server returned non-2xx status "
            "code: 503 Service Unavailable: ",
            StoreErrorKind.PASSING,
            "503 Service Unavailable",
        ),
        (
            "Generic MicrosoftAzure error: Account must be specified",
            StoreErrorKind.REFUSED,
            "Generic MicrosoftAzure error: ",
        ),
        (
            "Generic error: GET https://account/file?sig=secret in 1ms - HTTP error: reset",
            StoreErrorKind.PASSING,
            "Generic error: GET https://account/file in 1ms - HTTP error: reset",
        ),
    ],
)
def test_what_the_store_said(text, trouble, words):
    assert error_kind_of(RuntimeError(text)) is trouble
    assert words_of(RuntimeError(text)).startswith(words)
    assert "secret" not in words_of(RuntimeError(text))


class AlreadyExistsError(Exception):
    """As the library calls a put on the condition that nothing is there."""


@pytest.mark.parametrize(
    ("error", "kind", "number", "words", "for_good"),
    [
        (
            RuntimeError(ANSWER.format("412 Precondition Failed: ")),
            VersionConflict, errno.EEXIST, "somebody else", False,
        ),
        (
            AlreadyExistsError("Object at location file already exists"),
            VersionConflict, errno.EEXIST, "somebody else", False,
        ),
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
    failure = failure_of(error, Address.of(URL), URL)
    assert type(failure) is kind and failure.errno == number
    assert failure.strerror.startswith(words)
    assert is_for_good(failure) is for_good
    assert failure is error or failure.filename == URL
