"""A limit on the requests of an ASGI application, such as one of FastAPI, Starlette, Django or Litestar.

api.add_middleware(AsgiLimitMiddleware, limiter=Limiter(RateLimit("100/m", name="api")))    # FastAPI, Starlette
application = AsgiLimitMiddleware(application, limiter)                                      # any other
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from headgate import Decision, Limiter
from headgate.clock import Clock
from headgate.contrib.request_limit import STORE_ERRORS, Fields, Refusal, RequestLimit, key_of_address, missing_address

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ScopeKey = str | Callable[[Scope], str | None]
"""The key of the budget that a request uses: one for all, or the result of a function; None: not limited."""

_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


def client_address(scope: Scope) -> str:
    """Return the address of the client, and for IPv6 its 64-bit network. Raises DeclarationError without one."""
    client = scope.get("client")
    if not client or not client[0]:
        raise missing_address("AsgiLimitMiddleware")
    return key_of_address(client[0])


class AsgiLimitMiddleware:
    """Passes a request, or the handshake of a WebSocket, to `app` if the limiter allows it; otherwise answers 429.

    `key` is the key of the budget: a text, or a function of the scope (default: the client's address); None from it
    passes the request without a limit. `policy` is the name of the limit that clients see (default: its own name, else
    "default").

    Answers have `RateLimit-Policy` and `RateLimit`, refusals also `Retry-After`, in whole seconds. The permit of a
    `Concurrency` is held until the application has answered. If the store of the limiter does not answer, the limit's
    `on_store_error` decides: `"run"` (default) passes requests, `"wait"` answers 503, and with `"share"` this process
    uses its share. Raises DeclarationError.
    """

    def __init__(
        self,
        app: AsgiApp,
        limiter: Limiter,
        *,
        key: ScopeKey = client_address,
        policy: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._limit: RequestLimit[Scope] = RequestLimit(limiter, key, policy, where="AsgiLimitMiddleware", clock=clock)

    @property
    def passed_without_limit(self) -> int:
        """How many requests were passed on because the store of the limiter did not answer."""
        return self._limit.passed_without_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._limit.key_of(scope) if scope["type"] in ("http", "websocket") else None
        if key is None:
            await self._app(scope, receive, send)
            return
        decision: Decision | None = None
        try:
            with self._limit.asking_store():
                decision = await self._limiter.try_acquire(key)
            refusal = None if decision else self._limit.refusal(decision)
        except STORE_ERRORS as error:
            refusal = self._limit.without_store(error, key)
        if refusal is not None:
            await _refuse(scope, refusal, send)
        elif decision is None:
            await self._app(scope, receive, send)
        else:
            try:
                await self._app(scope, receive, _with_fields(send, self._limit.fields(decision)))
            finally:
                if self._limit.holds_permits:
                    self._limiter.release(key)


def _with_fields(send: Send, fields: Fields) -> Send:
    encoded = _encoded(fields)

    async def send_with_fields(message: Message) -> None:
        if message["type"] in _STARTS:
            message = {**message, "headers": [*message.get("headers", ()), *encoded]}
        await send(message)

    return send_with_fields


async def _refuse(scope: Scope, refusal: Refusal, send: Send) -> None:
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            # The server answers 403 to the handshake: without the extension it cannot send another status.
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.phrase})
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": _encoded(refusal.fields)})
    await send({"type": f"{kind}.body", "body": refusal.body})


def _encoded(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in fields]
