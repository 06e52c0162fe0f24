"""Requests to webhooks: what an error shows of an answer, and when a request ends, whatever the receiver does."""

from __future__ import annotations

import contextlib
import html
import math
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote
from urllib.request import Request

import pytest

from headgate.clock import SystemClock
from headgate.engine import alert_sender
from headgate.engine.alert_sender import WebhookFailed, post
from headgate.engine.bounded_opener import bounded_opener
from headgate.jobs.alert import message_for_test, parse_condition
from headgate.testing.manual_clock import ManualClock
from tests.until import patient

PATH = "/services/T0&x/SECRETs%2Fig?api=1&sig=QUERY%2Bkey"

Answer = Callable[[socket.socket, str], None]

MESSAGE = message_for_test("ops", [parse_condition("node_lost", "ops")], id="1", now=0, store="memory://")


class Receiver:
    """A server that leaves each connection to `answer`, with the target of its request, and closes it then."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        self.targets: list[str] = []
        self.is_closing = threading.Event()
        self._answer = answer
        self._context = context
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            if self.is_closing.is_set():
                connection.close()
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, raw: socket.socket) -> None:
        # The client may end the connection at any time.
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            connection = opened.enter_context(raw)
            if self._context is not None:
                connection = opened.enter_context(self._context.wrap_socket(raw, server_side=True))
            request = b""
            while not request.endswith(b"}"):
                more = connection.recv(65536)
                if not more:
                    return
                request += more
            self.targets.append(request.split()[1].decode())
            self._answer(connection, self.targets[-1])

    def close(self) -> None:
        self.is_closing.set()
        socket.create_connection(self._server.getsockname()).close()
        for thread in self._threads:
            thread.join()
        self._server.close()


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    receivers: list[Receiver] = []
    yield receivers
    for receiver in receivers:
        receiver.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def answering(receivers: list[Receiver], answer: Answer, context: ssl.SSLContext | None = None) -> Receiver:
    receivers.append(Receiver(answer, context))
    return receivers[-1]


def error_of(url: str) -> str:
    with pytest.raises(WebhookFailed) as failed:
        post(url, None, MESSAGE, SystemClock(), 0)
    return str(failed.value)


def dripping(start: bytes, receivers: list[Receiver]) -> Answer:
    """Answer with the start, and then with a byte each twentieth of a second, for ever."""

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(start)
        while not receivers[-1].is_closing.wait(0.05):
            connection.sendall(b"a")

    return answer


# ----------------------------------------------------------------------------------------- what an error shows


@pytest.mark.parametrize(
    "echo",
    [
        lambda target: target,
        lambda target: "x" * 180 + target,
        html.escape,
        unquote,
        lambda target: html.escape(unquote(target)),
        lambda target: target[4:-4],
        lambda target: target.upper(),
    ],
    ids=["whole", "cut", "escaped", "decoded", "both", "part", "upper"],
)
@pytest.mark.parametrize("place", ["body", "reason", "header", "status line", "version"])
def test_an_error_shows_nothing_of_an_answer_but_its_status(
    receivers: list[Receiver], echo: Callable[[str], str], place: str
) -> None:
    def answer(connection: socket.socket, target: str) -> None:
        said = echo(target)
        connection.sendall(
            {
                "body": f"HTTP/1.1 404 Not Found\r\n\r\nCannot POST {said}\n",
                "reason": f"HTTP/1.1 404 no {said}\r\nContent-Length: 0\r\n\r\n",
                "header": f"HTTP/1.1 302 Found\r\nLocation: ftp:{said}\r\nContent-Length: 0\r\n\r\n",
                "status line": f"no {said}\r\n\r\n",
                "version": f"HTTP/{said.split()[0]} 404 x\r\n\r\n",
            }[place].encode()
        )

    said = error_of(f"http://{answering(receivers, answer).host}{PATH}")
    unread = "BadStatusLine: the request could not be made, or its answer not be read"
    unknown = unread.replace("BadStatusLine", "UnknownProtocol")
    expected = {"body": "404 Not Found", "reason": "404 Not Found", "header": "302 Found"}
    assert said in (expected.get(place, unread), *([unknown] if place == "version" else []))


def test_a_status_without_usual_words_is_shown_as_a_number(receivers: list[Receiver]) -> None:
    receiver = answering(receivers, lambda connection, _: connection.sendall(b"HTTP/1.1 599 \x00\x1f no\r\n\r\n"))
    assert error_of(f"http://{receiver.host}/") == "status 599"


def test_an_error_of_the_connection_is_shown(receivers: list[Receiver]) -> None:
    receiver = answering(receivers, lambda connection, _: None)
    assert error_of(f"http://{receiver.host}{PATH}").startswith("RemoteDisconnected: ")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert error_of(f"http://127.0.0.1:{port}{PATH}").startswith("ConnectionRefusedError: ")
    # A host name that cannot be encoded: the text of such errors is not shown.
    said = error_of(f"http://{'a' * 70}.test{PATH}")
    assert said.startswith(("UnicodeError: the request", "UnicodeEncodeError: the request", "gaierror: "))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_to_another_host(receivers: list[Receiver], status: int) -> None:
    other = answering(receivers, lambda connection, _: connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"))
    location = f"HTTP/1.1 {status} x\r\nLocation: http://{other.host}/take\r\nContent-Length: 0\r\n\r\n".encode()
    receiver = answering(receivers, lambda connection, _: connection.sendall(location))
    assert error_of(f"http://{receiver.host}{PATH}").startswith(f"{status} ")
    assert (len(receiver.targets), other.targets) == (1, [])


# ---------------------------------------------------------------------------------------- when a request ends


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_receiver_that_drips_is_not_waited_for_beyond_the_deadline(
    receivers: list[Receiver], start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_sender, "REQUEST_TIMEOUT", 0.4)
    receiver = answering(receivers, dripping(start, receivers))
    began = time.monotonic()
    assert error_of(f"http://{receiver.host}{PATH}") == "no answer within 0 s"
    assert 0.3 < time.monotonic() - began < patient(5)


def test_a_body_is_not_waited_for(receivers: list[Receiver]) -> None:
    receiver = answering(receivers, dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", receivers))
    post(f"http://{receiver.host}{PATH}", None, MESSAGE, SystemClock(), 0)
    receiver = answering(receivers, dripping(b"HTTP/1.1 500 No\r\nContent-Length: 999\r\n\r\n", receivers))
    assert error_of(f"http://{receiver.host}{PATH}") == "500 Internal Server Error"


def test_an_endless_head_is_read_to_a_limit(receivers: list[Receiver]) -> None:
    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X: " + b"a" * 30_000 + b"\r\n")

    receiver = answering(receivers, answer)
    expected = "OSError: the head of the answer is longer than 65536 bytes"
    assert error_of(f"http://{receiver.host}{PATH}") == expected


def test_the_addresses_of_a_host_share_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is accepted there once the backlog is full, as with an address behind a firewall."""
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filling = opened.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        # If each had all of the time, they would take far longer than any busy machine.
        count = math.ceil(4 * patient(1.5) / 0.6)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))] * count
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(alert_sender, "REQUEST_TIMEOUT", 0.6)
        began = time.monotonic()
        assert error_of(f"http://hooks.test:{port}{PATH}") == "no answer within 1 s"
        assert 0.5 < time.monotonic() - began < patient(1.5)


def test_a_request_is_not_begun_after_its_deadline(receivers: list[Receiver]) -> None:
    receiver = answering(receivers, lambda connection, _: None)
    clock = ManualClock()
    opener = bounded_opener(clock, 20)
    clock.advance(20)
    with pytest.raises(OSError, match="timed out"):
        opener.open(Request(f"http://{receiver.host}/", b"{}"))
    assert receiver.targets == []


# ------------------------------------------------------------------------------------------- TLS and proxies


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_an_encrypted_request_has_the_same_deadline(
    receivers: list[Receiver], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    accepting = answering(receivers, lambda conn, _: conn.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"), context)
    assert error_of(f"https://{accepting.host}{PATH}").startswith("SSLCertVerificationError: ")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    post(f"https://{accepting.host}{PATH}", None, MESSAGE, SystemClock(), 0)
    assert accepting.targets == [PATH]
    dripped = answering(receivers, dripping(b"HTTP/1.1 200 OK\r\nX: ", receivers), context)
    monkeypatch.setattr(alert_sender, "REQUEST_TIMEOUT", 0.6)
    began = time.monotonic()
    assert error_of(f"https://{dripped.host}{PATH}") == "no answer within 1 s"
    # One that speaks no TLS: the handshake has the same deadline.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert error_of(f"https://127.0.0.1:{silent.getsockname()[1]}/") == "no answer within 1 s"
    assert time.monotonic() - began < patient(5)


def test_a_proxy_of_the_environment_is_used(receivers: list[Receiver], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = answering(receivers, lambda connection, _: connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"))
    monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
    post(f"http://hooks.test{PATH}", None, MESSAGE, SystemClock(), 0)
    assert proxy.targets == [f"http://hooks.test{PATH}"]


def test_a_proxy_that_opens_no_tunnel_is_an_error_and_has_the_same_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [b"HTTP/1.1 407 Pay first\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "]
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://ada:secret@127.0.0.1:{proxy.getsockname()[1]}")

        def serve() -> None:
            for answer in answers:
                try:
                    connection, _ = proxy.accept()
                except OSError:
                    return  # shut down: the deadline had passed before anybody connected
                with connection:
                    assert PATH.encode() not in connection.recv(65536)
                    connection.sendall(answer)
                    with contextlib.suppress(OSError):
                        while connection.recv(1) and answer is answers[1]:
                            pass

        serving = threading.Thread(target=serve)
        serving.start()
        assert error_of(f"https://hooks.test{PATH}") == "OSError: Tunnel connection failed: 407 Pay first"
        monkeypatch.setattr(alert_sender, "REQUEST_TIMEOUT", 0.4)
        assert error_of(f"https://hooks.test{PATH}") == "no answer within 0 s"
        proxy.shutdown(socket.SHUT_RDWR)
        serving.join()
