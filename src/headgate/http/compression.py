"""Compression: a response is sent as gzip to a client that accepts it."""

from __future__ import annotations

import asyncio
import gzip
import re

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

SMALLEST = 1000
"""Bytes; a smaller body fits into one packet as it is."""

LARGE = 256 * 1024
"""Bytes from which a body is compressed in a thread, so that other requests do not wait for it."""

FAST = 1
"""The compression level of what is sent once: JSON becomes a fifth to a tenth at any level."""

_REFUSED = re.compile(r"\s*q\s*=\s*0(?:\.0*)?\s*")

_KINDS = ("text/", "application/json", "application/problem+json", "image/svg+xml")


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts a response that is compressed with gzip."""
    for offer in request.headers.get("accept-encoding", "").split(","):
        coding, _, weight = offer.partition(";")
        if coding.strip().lower() == "gzip":
            return _REFUSED.fullmatch(weight) is None
    return False


async def compressed(request: Request, response: Response) -> Response:
    """Return the response, compressed if that makes it smaller and the client accepts it.

    A stream stays as it is: its events must not wait in a buffer.
    """
    if isinstance(response, StreamingResponse) or len(response.body) < SMALLEST:
        return response
    # A file already is what this client accepts, and says that it varies.
    if "vary" in response.headers or not response.headers.get("content-type", "").startswith(_KINDS):
        return response
    response.headers["Vary"] = "Accept-Encoding"
    if not accepts_gzip(request):
        return response
    body = bytes(response.body)
    response.body = zipped(body) if len(body) < LARGE else await asyncio.to_thread(zipped, body)
    response.headers["Content-Encoding"] = "gzip"
    response.headers["Content-Length"] = str(len(response.body))
    return response


def zipped(body: bytes, level: int = FAST) -> bytes:
    """Return the body as gzip; the same bytes for the same body."""
    return gzip.compress(body, level, mtime=0)
