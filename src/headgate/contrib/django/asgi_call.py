"""Calls an ASGI app from a Django view: the scope of a request, and the app's response as one of Django's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope


def scope_of(request: Any, path: str) -> Scope:
    """Return the ASGI scope of a request under WSGI or ASGI, for an app whose own path it is.

    What is before `path` is the root path. The host and the scheme are Django's, which knows its proxies. Raises
    DisallowedHost.
    """
    meta = request.META
    headers = {name.lower(): value for name, value in request.headers.items()} | {"host": request.get_host()}
    if isinstance(request, ASGIRequest):
        raw_path, query = request.scope.get("raw_path"), meta["QUERY_STRING"].encode()
    else:
        # gunicorn, uWSGI and mod_wsgi have the path as it was sent; for other servers %2F is a slash.
        raw_path = (meta.get("RAW_URI") or meta.get("REQUEST_URI") or quote(request.path)).encode("latin-1", "replace")
        query = meta["QUERY_STRING"].encode("latin-1", "replace")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": raw_path,
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": query,
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": (meta["REMOTE_ADDR"], 0) if meta.get("REMOTE_ADDR") else None,
    }


async def call_asgi(app: ASGIApp, scope: Scope, body: bytes) -> Any:
    """Return the app's response to this request; a streamed one if the app sends it in parts."""
    unread = [body]
    # Not bounded, so that a call ends even if its parts are never read. A stream of the dashboard has few of them,
    # because it lasts half a minute.
    messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive() -> Message:
        if not unread:
            # Django cancels the view when the client disconnects, so this has nothing to report.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def call() -> None:
        try:
            await app(scope, receive, messages.put)
        finally:
            messages.put_nowait(None)

    calling = asyncio.create_task(call())
    try:
        start = await messages.get()
        first = None if start is None else await messages.get()
        is_streamed = first is not None and first.get("more_body", False)
        if not is_streamed:
            await calling
    except BaseException:
        calling.cancel()
        raise
    assert start is not None
    assert first is not None
    status = start["status"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    if not is_streamed:
        return HttpResponse(first["body"], status=status, headers=headers)

    async def parts() -> AsyncIterator[bytes]:
        try:
            message: Message | None = first
            while message is not None:
                yield message["body"]
                message = await messages.get()
        finally:
            calling.cancel()

    # GZipMiddleware would compress each part by itself, and some browsers read only the first of such parts.
    return StreamingHttpResponse(parts(), status=status, headers=headers | {"Content-Encoding": "identity"})
