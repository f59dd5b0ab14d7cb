"""A real S3 server on loopback, with a place in front of it where tests make it fail."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import Request, urlopen

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from rljob_api.tests.http_server import serving

SLOW_DOWN = (
    "503 Service Unavailable",
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
)


CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH")


@dataclass
class S3Server:
    """asked: every request, as `GET /bucket/key bytes=0-9`.   fail: given a request, the answer in place of the
    server's, or None.   fail_write: the same of what changes something: `PUT /bucket/key`, `POST …`, `DELETE …`."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    fail: object = staticmethod(lambda request: None)
    fail_write: object = staticmethod(lambda request: None)
    ignored: tuple = ()

    @property
    def environment(self):
        """What workers find in their environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def lose_conditions(self, lost=CONDITIONS):
        """From now on the server is one that does not know conditional puts, and takes each of them as a plain one; or
        one that knows one of the two conditions."""
        self.ignored = lost

    def put(self, key, body):
        """key: `bucket/folder/file`; the bucket alone makes the bucket."""
        self._send("PUT", key, body)

    def delete(self, key):
        self._send("DELETE", key, b"")

    def publish(self, key, body):
        """An object that everyone may read, without credentials."""
        self._send("PUT", key, body, {"x-amz-acl": "public-read"})

    def require_credentials(self):
        """From now on the server knows no user."""
        self._send("POST", "moto-api/reset-auth", b"0")

    def _send(self, method, key, body, extra=None):
        headers = {
            "Content-Type": "application/octet-stream",
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request",
        }
        with urlopen(Request(f"{self.url}/{key}", data=body, method=method, headers=headers | (extra or {}))):
            pass

    def _answer(self, application, environ, start_response):
        path, span = environ["PATH_INFO"], environ.get("HTTP_RANGE", "")
        query = environ["QUERY_STRING"]
        request = f"{environ['REQUEST_METHOD']} {path}{'?' + query if query else ''} {span}".strip()
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            self.asked.append(request)
            failure = self.fail(request)
        else:
            failure = self.fail_write(request)
        environ = {name: value for name, value in environ.items() if name not in self.ignored}
        if failure is None:
            return application(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(failure[0], [("Content-Length", str(len(failure[1])))])
        return [failure[1]]


@contextmanager
def s3_server(host="127.0.0.1"):
    application = DomainDispatcherApplication(create_backend_app)
    result = S3Server()
    server = make_server(host, 0, lambda *call: result._answer(application, *call), threaded=True)
    with serving(server) as result.url:
        result._send("POST", "moto-api/reset", b"")
        result._send("POST", "moto-api/reset-auth", b"inf")
        yield result


@contextmanager
def s3_bucket(name, monkeypatch):
    """A server with an empty bucket, to which the environment of this process leads."""
    with s3_server() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        server.put(name, b"")
        yield server
