"""A limit on the requests of a WSGI application, such as one of Flask or Django.

web.wsgi_app = WsgiLimitMiddleware(web.wsgi_app, Limiter(RateLimit("100/m", name="api")))    # Flask
application = WsgiLimitMiddleware(get_wsgi_application(), limiter)                           # Django
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from headgate import Decision, Limiter
from headgate.clock import Clock
from headgate.contrib.request_limit import STORE_ERRORS, Fields, Refusal, RequestLimit, key_of_address, missing_address

EnvironKey = str | Callable[[WSGIEnvironment], str | None]
"""The key of the budget that a request uses: one for all, or the result of a function; None: not limited."""


def remote_address(environ: WSGIEnvironment) -> str:
    """Return the address of the client, and for IPv6 its 64-bit network. Raises DeclarationError without one."""
    address = environ.get("REMOTE_ADDR")
    if not address:
        raise missing_address("WsgiLimitMiddleware")
    return key_of_address(address)


class WsgiLimitMiddleware:
    """Passes a request to `app` if the limiter allows it; otherwise answers 429. It never waits.

    Same as `AsgiLimitMiddleware`; `key` is a text, or a function of the environ (default: the client's address). The
    permit of a `Concurrency` is held until the server has closed the answer. Raises DeclarationError.
    """

    def __init__(
        self,
        app: WSGIApplication,
        limiter: Limiter,
        *,
        key: EnvironKey = remote_address,
        policy: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._limit: RequestLimit[WSGIEnvironment] = RequestLimit(
            limiter, key, policy, where="WsgiLimitMiddleware", clock=clock
        )
        self._limiter = limiter.sync

    @property
    def passed_without_limit(self) -> int:
        """How many requests were passed on because the store of the limiter did not answer."""
        return self._limit.passed_without_limit

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        key = self._limit.key_of(environ)
        if key is None:
            return self._app(environ, start_response)
        decision: Decision | None = None
        try:
            with self._limit.asking_store():
                decision = self._limiter.try_acquire(key)
            refusal = None if decision else self._limit.refusal(decision)
        except STORE_ERRORS as error:
            refusal = self._limit.without_store(error, key)
        if refusal is not None:
            return _refuse(environ, refusal, start_response)
        if decision is None:
            return self._app(environ, start_response)
        start = _with_fields(start_response, self._limit.fields(decision))
        if not self._limit.holds_permits:
            return self._app(environ, start)
        release = partial(self._limiter.release, key)
        try:
            return _PermitBody(self._app(environ, start), release)
        except BaseException:
            release()
            raise


class _PermitBody:
    """The body of an answer; closing it returns the permit."""

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._closing = ExitStack()
        self._closing.callback(release)
        self._closing.callback(getattr(body, "close", lambda: None))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        self._closing.close()


def _with_fields(start_response: StartResponse, fields: Fields) -> StartResponse:
    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Callable[[bytes], object]:
        return start_response(status, [*headers, *fields], *exc_info)

    return start


def _refuse(environ: WSGIEnvironment, refusal: Refusal, start_response: StartResponse) -> list[bytes]:
    start_response(f"{refusal.status} {refusal.phrase}", refusal.fields)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [refusal.body]
