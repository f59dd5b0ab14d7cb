"""The proxy of confined processes: listed places only, and never the machine's surroundings."""

import asyncio
import gc
import http.server
import socket
import threading
from contextlib import contextmanager

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Target
from rljob_worker.sandbox.confinement import proxy as proxy_module
from rljob_worker.sandbox.confinement.proxy import Proxy, network_places
from rljob_worker.sandbox.tests.calling import LIMITS, calling


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self):
        body = f"{self.path} for {self.headers['Host']} {self.headers['Connection']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def serving(handler=Echo):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def proxy(*network):
    running = Proxy(network_places("job", network))
    try:
        yield running
    finally:
        running.close()


async def no_connection(host, port):
    """Stands for a connection that may not even be tried."""
    raise AssertionError(f"the proxy connects to {host}:{port}")


def asked(port, head):
    with socket.socket() as client:
        client.settimeout(TEST_TIMEOUT_SECONDS)
        client.connect(("127.0.0.1", port))
        client.sendall(head.encode())
        client.shutdown(socket.SHUT_WR)
        data = b""
        while piece := client.recv(65536):
            data += piece
    return data.decode()


class Late(Echo):
    """Answers once the garbage of this process is collected."""

    def do_GET(self):
        gc.collect()
        super().do_GET()


def test_a_client_that_has_closed_its_side_gets_a_late_answer():
    with serving(Late) as port, proxy(f"127.0.0.1:{port}") as running:
        tunnel = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nGET /c HTTP/1.0\r\nHost: x\r\n\r\n"
        for _ in range(3):
            assert asked(running.port, tunnel).endswith("/c for x None")


def test_a_listed_place_is_reached_by_http_and_by_connect():
    with serving() as port, proxy(f"127.0.0.1:{port}") as running:
        request = f"GET http://127.0.0.1:{port}/a?b=1 HTTP/1.1\r\nHost: other\r\nConnection: keep-alive\r\n\r\n"
        assert asked(running.port, request).endswith(f"/a?b=1 for 127.0.0.1:{port} close")
        tunnel = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nGET /c HTTP/1.0\r\nHost: x\r\n\r\n"
        answer = asked(running.port, tunnel)
        assert answer.startswith("HTTP/1.1 200 Connection established\r\n\r\n") and answer.endswith("/c for x None")


@pytest.mark.parametrize(
    "head",
    ["CONNECT 127.0.0.1:{port} HTTP/1.1", "GET http://127.0.0.1:{port}/ HTTP/1.1", "CONNECT example.com:444 HTTP/1.1"],
)
def test_another_place_is_refused_by_name(head):
    with serving() as port, proxy("example.com:443") as running:
        answer = asked(running.port, head.format(port=port) + "\r\n\r\n")
        assert answer.startswith("HTTP/1.1 403") and "is not in the job's `network`" in answer


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "100.100.100.200",
        "127.0.0.1",
        "::1",
    ],
)
def test_a_name_that_leads_into_the_surroundings_is_refused(address, monkeypatch):
    def resolve(host, port, *_, **__):
        """Only the proxy asks for this name; nobody else may be led to such an address."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        assert host == "innocent.example"
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(proxy_module, "open_connection", no_connection)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with proxy("innocent.example:80") as running:
        answer = asked(running.port, "CONNECT innocent.example:80 HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403") and f"innocent.example is {address}, which is never allowed" in answer


@pytest.mark.parametrize(
    "request_", ["nonsense\r\n\r\n", "\r\n\r\n", "GET /relative HTTP/1.1\r\n\r\n", "x" * 70_000, ""]
)
def test_what_is_no_request_gets_an_error(request_):
    with proxy("example.com:443") as running:
        assert asked(running.port, request_).startswith(("HTTP/1.1 502", "HTTP/1.1 403"))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("example.com", "is not of the form host:port"),
        ("http://example.com:80", "is not of the form host:port"),
        ("*.example.com:443", "is not of the form host:port"),
        ("example.com:99999", "is not of the form host:port"),
        ("me@example.com:80", "is not of the form host:port"),
        (":80", "is not of the form host:port"),
        ("169.254.169.254:80", "which is never allowed"),
        ("[fe80::1]:80", "which is never allowed"),
    ],
)
def test_an_entry_that_is_no_place_is_refused_by_name(entry, words):
    with pytest.raises(InvalidJob) as caught:
        network_places("conversation", ["example.com:443", entry])
    assert str(caught.value).startswith("conversation: network: ") and entry in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.usefixtures("confining_kernel")
def test_a_confined_process_reaches_the_network_by_the_proxy_alone():
    async def fetch(url, network):
        async with calling(Target("attacks:fetch", {}, LIMITS), confinement="Required", network=network) as calls:
            return await calls.call("s", "fetch", None, {"url": url})

    with serving() as port:
        answer = asyncio.run(fetch(f"http://127.0.0.1:{port}/x", [f"127.0.0.1:{port}"]))
        assert answer.value == f"/x for 127.0.0.1:{port} close"
        assert "HTTP Error 403" in asyncio.run(fetch(f"http://127.0.0.1:{port}/x", ["example.com:80"])).error.message
        assert "not permitted" in asyncio.run(fetch(f"http://127.0.0.1:{port}/x", [])).error.message
