"""An opener of URLs whose requests have one deadline, however slowly the server answers, and read no more than a head.

The opener of the standard library has a timeout for each read only, which a server that sends a byte at a time never
exceeds. It uses the proxies of the environment, and follows no redirects.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from headgate.clock import SECOND, Clock, microseconds

LONGEST_ANSWER = 65536
"""How many bytes of an answer are read, with those of a proxy. Nothing needs the body."""


def bounded_opener(clock: Clock, seconds: float) -> OpenerDirector:
    """Return an opener for one request, which ends within `seconds`, except that the resolver has its own timeouts.

    What it raises then is a TimeoutError, or a URLError with one.
    """
    ends_at = clock.monotonic() + microseconds(seconds)

    def left() -> float:
        remaining = ends_at - clock.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        return remaining / SECOND

    return build_opener(_NoRedirects, _Handler(left))


Left = Callable[[], float]
"""Returns how many seconds are left until the deadline. Raises TimeoutError if none are."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would turn the request into one without a body, whose answer says nothing."""

    def redirect_request(self, *_: object) -> None:
        return None


class _Handler(HTTPHandler, HTTPSHandler):
    """Makes connections that keep to the deadline when they connect and when they read answers, a proxy's too."""

    def __init__(self, left: Left) -> None:
        super().__init__()
        self._left = left

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPConnection), req)

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPSConnection), req)

    def _connection(self, kind: type[HTTPConnection], host: str, /, **options: Any) -> HTTPConnection:
        connection = kind(host, **options)
        connection._create_connection = partial(_connected, self._left)  # type: ignore[attr-defined]
        connection.response_class = partial(_Response, self._left)  # type: ignore[assignment]
        return connection


def _connected(left: Left, address: tuple[str, int], *_options: object) -> socket.socket:
    """Connect to the first address of the host that answers; those that are left share the time that is left."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    error: OSError | None = None
    for number, (*kind, _, place) in enumerate(found):
        connection = socket.socket(*kind)
        try:
            connection.settimeout(left() / (len(found) - number))
            connection.connect(place)
            # For the TLS handshake and the request, each as a whole.
            connection.settimeout(left())
        except OSError as failed:
            connection.close()
            error = failed
        else:
            return connection
    assert error is not None
    raise error


class _Response(HTTPResponse):
    def __init__(self, left: Left, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = BufferedReader(_BoundedReader(self.fp.detach(), sock, left))


class _BoundedReader(RawIOBase):
    """Reads a socket until the deadline, and LONGEST_ANSWER bytes at most."""

    def __init__(self, raw: RawIOBase, sock: socket.socket, left: Left) -> None:
        self._raw = raw
        self._sock = sock
        self._left = left
        self._room = LONGEST_ANSWER

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._left())
        count: int | None = self._raw.readinto(buffer)
        self._room -= count or 0
        if self._room < 0:
            raise OSError(f"the head of the answer is longer than {LONGEST_ANSWER} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
