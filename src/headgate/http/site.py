"""The dashboard as an ASGI app: routes, access control and responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from headgate.admin import Admin, Overview, SlowCounts
from headgate.admin.ended import EndFollower, Place, place_of
from headgate.app import Headgate
from headgate.clock import Clock, SystemClock, from_datetime
from headgate.errors import HeadgateError, NotOpen
from headgate.http.access_control import AccessControl, RequestIdentity
from headgate.http.auth import Auth, OneTimeToken, Role, SignInFields, User
from headgate.http.caller import Caller
from headgate.http.compression import compressed
from headgate.http.endpoint import API, Endpoint, EndpointRunner, parse_query, read_body, require_limit
from headgate.http.events import EventsQuery, events, to_after
from headgate.http.http_error import HttpError, http_error_of
from headgate.http.openapi import openapi
from headgate.http.overview_poller import OverviewPoller
from headgate.http.redaction import ALWAYS, Redaction
from headgate.http.reports import ReportMaker
from headgate.http.routes import ENDPOINTS
from headgate.http.sessions import PATIENCE, delete_cookie, set_cookie
from headgate.http.sign_in_page import FORM, LONGEST_FORM, SignInPage, parse_form, to_address, visited_place
from headgate.http.static_files import PAGES, StaticFiles
from headgate.http.stream import EndReader, Stream, StreamListener
from headgate.jobs.audit import AuditEntry, SignInAction
from headgate.storage.records import EndsRead

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every response, even of errors; the sign-in page has a stricter policy of its own."""

_log = logging.getLogger("headgate.http")

Serve = Callable[[Request, RequestIdentity], Awaitable[Response]]


class Dashboard(Starlette):
    """The dashboard and REST API of an app, to serve or to mount: `host.mount("/jobs", dashboard(app, auth=…))`.

    `auth` is required, and identifies users: a BasicAuth, BearerAuth, CallbackAuth or OneTimeToken. `redact` names
    further fields to hide from all users, such as `"card.number"` or `"*_key"`, beside passwords, secrets, tokens and
    API keys; None shows all. With `read_only` nothing can be changed, whatever the role. `trusted_proxies` are the
    addresses whose X-Forwarded-For, -Host and -Proto are trusted. `secret` signs sessions and tokens: pass the same to
    all processes that serve the dashboard; without one they are valid in one process only. `target` is the app as the
    command line names it, `"shop.jobs:app"`: the commands that the pages show then work as they are. Raises
    DeclarationError for invalid arguments.

    The first request opens the app unless it is open; the dashboard closes what it opened when its own lifespan or the
    event loop ends. If threads have opened the app, as with `app.sync`, calls run on the loop that they share.
    """

    def __init__(
        self,
        app: Headgate,
        *,
        auth: Auth | None = None,
        redact: Iterable[str] | None = (),
        title: str = "Headgate",
        read_only: bool = False,
        trusted_proxies: Iterable[str] = (),
        secret: str | None = None,
        target: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        guard = AccessControl(
            auth,
            read_only=read_only,
            trusted_proxies=trusted_proxies,
            secret=None if secret is None else secret.encode(),
            clock=clock,
        )
        further = (redact,) if isinstance(redact, str) else redact
        self._redaction = Redaction(() if further is None else (*ALWAYS, *further))
        self._app = app
        self._clock = clock
        self._guard = guard
        self._takes_links = isinstance(auth, OneTimeToken)
        self._title = title
        self._read_only = read_only
        self._target = target
        self._opening: asyncio.Task[None] | None = None
        self._opened: contextlib.AsyncExitStack | None = None
        self._counts = SlowCounts(clock)
        self._reports = ReportMaker(clock)
        self._recordings: set[asyncio.Future[None]] = set()
        if guard.sessions is not None and secret is not None:
            guard.sessions.share(self._sign_outs)
        self._reach = app._client.portal.reach
        self._watch = OverviewPoller(self._overview, clock)
        self.stream = Stream(lambda: self._reach(self._watch.look()), clock)
        self._ends = EndReader(self._read_ends, clock)
        self._shell = StaticFiles()
        self._sign_in_page = SignInPage(title, guard.form, guard.sign_in_url)
        super().__init__(routes=self._routes(), lifespan=_lifespan, exception_handlers={HTTPException: self._not_found})
        self.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        await super().__call__(scope, receive, send_safely)

    async def close(self) -> None:
        """End all streams, and close what was opened here; twice is harmless. The next request opens it again."""
        self.stream.end()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._guard.sessions is not None:
            await self._guard.sessions.close()
        if recordings := list(self._recordings):
            for recording in recordings:
                recording.cancel()
            await asyncio.wait(recordings)
        await self._reach(self._watch.close())
        self._ends.close()
        await self._reach(self._counts.close())
        await self._reach(self._reports.close())
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()
        self.stream.begin()

    def has(self, path: str) -> bool:
        """Whether something is served at this path, which is below where the dashboard is mounted."""
        scope = {"type": "http", "method": "GET", "path": path, "headers": []}
        return any(route.matches(scope)[0] is not Match.NONE for route in self.routes)

    # ------------------------------------------------------------------------------------------------- routes

    def _routes(self) -> list[Route]:
        shell = self._shell

        async def page(request: Request, visitor: RequestIdentity) -> Response:
            return await shell.page(request)

        async def file(request: Request, visitor: RequestIdentity) -> Response:
            return await shell.file(request)

        async def stream(request: Request, visitor: RequestIdentity) -> Response:
            show = (await self._caller(visitor)).shown
            return await self.stream.response(request, show, self._listener(visitor))

        description = openapi(ENDPOINTS)

        async def described(request: Request, visitor: RequestIdentity) -> Response:
            return Response(description, media_type="application/json", headers={"Cache-Control": "no-cache"})

        async def refused(request: Request, visitor: RequestIdentity) -> Response:
            return _refused(request, HTTPException(405, headers={"Allow": "POST"}))

        # First, because a route that reads a name would take the action for a part of it.
        readable = {each.path for each in ENDPOINTS if each.method == "GET"}
        actions = [each for each in ENDPOINTS if each.method == "POST" and each.path not in readable]
        routes: list[Route] = [
            _ActionRoute(API + _path(each), self._guarded("GET", refused), methods=["GET"]) for each in actions
        ]
        routes += [self._route(API + _path(each), each.method, self._answering(each), each.needs) for each in ENDPOINTS]
        streams = self._route(f"{API}/stream", "GET", stream)
        # HEAD would be a stream without a reader.
        streams.methods = {"GET"}
        routes.append(streams)
        routes.append(self._route(f"{API}/openapi.json", "GET", described))
        routes.append(self._route("/static/{path:path}", "GET", file))
        routes.append(Route("/login", self._answered(self._sign_in), methods=["GET", "POST"]))
        routes.append(Route("/logout", self._answered(self._sign_out), methods=["POST"]))
        everywhere = self._answered(partial(self._sign_out, everywhere=True))
        routes.append(Route("/logout/everywhere", everywhere, methods=["POST"]))
        return routes + [self._route(path, "GET", page) for path in PAGES]

    def _listener(self, visitor: RequestIdentity) -> StreamListener:
        """Return who listens to a stream, and whether their session is current."""
        session, sessions = visitor.session, self._guard.sessions
        if session is None or sessions is None:
            return StreamListener(visitor.user.name)

        def is_current() -> bool:
            sessions.begin_refresh()
            return sessions.is_current(session)

        return StreamListener(visitor.user.name, session.id, is_current)

    def _route(self, path: str, method: str, serve: Serve, needs: Role = "viewer") -> Route:
        return Route(path, self._guarded(method, serve, needs), methods=[method])

    def _guarded(self, method: str, serve: Serve, needs: Role = "viewer") -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            visitor = await self._guard.visitor(request)
            self._guard.require(request, visitor, needs, changes=method != "GET")
            return await serve(request, visitor)

        return self._answered(guarded)

    def _answered(self, serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Answer refusals and errors, too: a signed-out visit with the sign-in page, everything else as JSON."""

        async def respond(request: Request) -> Response:
            try:
                return await serve(request)
            except HttpError as refusal:
                if refusal.status == 401 and _is_visit(request):
                    return self._sign_in_page.response(request, refusal, None, visited_place(request))
                return refusal.response()
            except HeadgateError as error:
                return http_error_of(error).response()
            except Exception:
                # A path may contain line breaks, which would forge log lines.
                _log.exception("%s %r failed", request.method, request.scope.get("path"))
                return HttpError(500, "internal_error", "the dashboard failed; its log has the error").response()

        async def answered(request: Request) -> Response:
            return await compressed(request, await respond(request))

        return answered

    # ---------------------------------------------------------------------------------------- signing in and out

    async def _sign_in(self, request: Request) -> Response:
        """Serve the sign-in page, its form, and the one-time link; the only address without access control."""
        # Only a token that works once: a link remains in histories and logs. No picture or script of a page opens it.
        is_link = self._takes_links and request.headers.get("sec-fetch-dest", "document") == "document"
        token = request.query_params.get("token") if is_link and request.method == "GET" else None
        if request.method != "POST":
            try:
                await self._guard.visitor(request)
                return _redirect(request, "")
            except HttpError:
                if token is None:
                    raise
        fields, place = SignInFields("", token or ""), ""
        try:
            if request.method == "POST":
                self._guard.require_same_site(request)
                fields, place = parse_form(await read_body(request, kind=FORM, largest=LONGEST_FORM))
            user, cookie = await self._guard.sign_in(request, fields)
        except HttpError as refusal:
            if not _accepts_page(request):
                raise
            return self._sign_in_page.response(request, refusal, fields, place)
        response = _redirect(request, place)
        set_cookie(response, request, cookie, is_secure=self._guard.is_https(request))
        await self._record(user, "sign in", f"from {self._guard.address(request)}")
        return response

    async def _sign_out(self, request: Request, *, everywhere: bool = False) -> Response:
        """End the session of the user, or all of them, in all browsers and in all processes with the same secret."""
        visitor = await self._guard.visitor(request)
        self._guard.require_intent(request, visitor)
        user, session, sessions = visitor.user, visitor.session, self._guard.sessions
        if sessions is not None and everywhere:
            sessions.end_all(user.name, self._clock.now())
            self.stream.end_of(user.name)
            # Unless it is stored, the other processes accept the sessions: then the user has to know.
            await self._act(lambda admin: admin.record_sign_in("sign out everywhere", "all sessions"), user)
        elif sessions is not None and session is not None:
            sessions.end(session.id, session.ends_at)
            self.stream.end_of(user.name, session.id)
            await self._record(user, "sign out", session.id)
        else:
            raise HttpError(409, "no_session", "there is no session to end: each request carries its credential")
        response = Response(status_code=204, headers={"Cache-Control": "no-store"})
        delete_cookie(response, request)
        return response

    async def _record(self, user: User, action: SignInAction, detail: str) -> None:
        """Store a sign-in or a sign-out; if the store does not answer within a second, it takes effect before that."""

        async def record() -> None:
            try:
                await self._act(lambda admin: admin.record_sign_in(action, detail), user)
            except HeadgateError as error:
                _log.warning("the %s of %r could not be stored: %s", action, user.name, error)

        recording = asyncio.ensure_future(record())
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        done, _ = await asyncio.wait([recording], timeout=PATIENCE)
        for each in done:
            each.result()

    async def _act(self, act: Callable[[Admin], Coroutine[Any, Any, None]], user: User) -> None:
        admin = (await self._admin()).by(user.name)
        await self._reach(act(admin))

    async def _sign_outs(self, since: int) -> Sequence[AuditEntry]:
        return await self._reach((await self._admin()).sign_outs(since))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)

        async def answer(request: Request, visitor: RequestIdentity) -> Response:
            if error.status_code == 404 and _is_visit(request):
                return await self._shell.page(request, 404)
            return _refused(request, error)

        # Users who are not signed in must not find out which addresses exist.
        return await self._guarded("GET", answer)(request)

    def _answering(self, endpoint: Endpoint) -> Serve:
        answer = EndpointRunner(endpoint)

        async def serve(request: Request, visitor: RequestIdentity) -> Response:
            if endpoint.method == "DELETE":
                _require_own_address(request)
            if endpoint.handler is events and accepts_stream(request):
                return await self._stream_of_ends(request, visitor)
            try:
                return await answer(request, await self._caller(visitor))
            finally:
                if endpoint.changes:
                    await self._reach(self._changed())

        return serve

    async def _changed(self) -> None:
        """Let the next overview and the next report show a change. Runs where they are read."""
        self._watch.changed()
        self._reports.changed()

    # ------------------------------------------------------------------------------------------------ serving

    async def _caller(self, visitor: RequestIdentity) -> Caller:
        user = visitor.user
        return Caller(
            user=user,
            can_sign_out=visitor.session is not None,
            admin=(await self._admin()).by(user.name),
            redaction=self._redaction,
            watch=self._watch,
            counts=self._counts,
            reports=self._reports,
            codecs=self._app._registry.codecs,
            reach=self._reach,
            token=self._guard.token(user),
            title=self._title,
            read_only=self._read_only,
            target=self._target,
        )

    async def _stream_of_ends(self, request: Request, visitor: RequestIdentity) -> Response:
        query = parse_query(request.scope.get("query_string", b""), EventsQuery)
        assert isinstance(query, EventsQuery)
        require_limit(await self._caller(visitor), query.limit)
        # A browser that opens the stream again repeats its address, and so its first `after`.
        after = request.headers.get("last-event-id") or to_after(query.after)
        begin = place_of(after, from_datetime((await self._admin()).now()))
        follower = EndFollower(lambda place: self._reach(self._ends(place)), begin)
        return await self.stream.ends_response(follower, query, self._listener(visitor))

    async def _read_ends(self, after: Place) -> EndsRead:
        return await (await self._admin()).read_ends(after)

    async def _overview(self) -> Overview:
        return await (await self._admin()).overview(self._counts)

    async def _admin(self) -> Admin:
        """Return the Admin of the app, which is opened if it is not open."""
        with contextlib.suppress(NotOpen):
            return self._app.admin
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
            # If no caller is left when it fails, asyncio must not warn about its exception.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        # A caller that is cancelled must not cancel the opening for the others.
        await asyncio.shield(self._opening)
        return self._app.admin

    async def _open(self) -> None:
        # Without a lifespan, as in an app that mounts this one, the event loop closes it: at its end, the loop closes
        # the async generators that were started on it.
        opened = contextlib.AsyncExitStack()
        await opened.enter_async_context(self._app._opened(migrate=False))
        self._opened = opened


dashboard = Dashboard
"""The name by which programs make one, like a function."""


@contextlib.asynccontextmanager
async def _lifespan(site: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await site.close()


class _ActionRoute(Route):
    """A route that ends in a word of its own. It does not match a name with this end, whose slash is written %2F."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        word = self.path.rpartition("/")[2]
        return super().matches(scope) if _last_part(scope) == word else (Match.NONE, {})


def _last_part(scope: Scope) -> str:
    """Return what follows the last slash of the path that is not escaped."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return unquote(raw.partition(b"?")[0].rpartition(b"/")[2].decode("latin-1"))


def _path(endpoint: Endpoint) -> str:
    """Return the path for the router. Names may contain a slash, even escaped; ids do not."""
    return re.sub(r"{(limit|name|task)}", r"{\1:path}", endpoint.path)


def _require_own_address(request: Request) -> None:
    """Raise HttpError unless the name to delete is one part of the path, with its slashes written as %2F.

    Otherwise a DELETE that was meant for an action, `…/limits/x/pause`, would remove a limit named `x/pause`.
    """
    (name,) = request.path_params.values()
    if _last_part(request.scope) != name:
        raise HttpError(
            404, "not_found", "there is nothing to delete at this address; a slash in a name is written %2F"
        )


def _is_visit(request: Request) -> bool:
    """Whether a user visits the address in a browser, so that a page is a better answer than JSON."""
    below = str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))
    is_file = below.startswith(("/api/", "/static/"))
    return request.method in ("GET", "HEAD") and _accepts_page(request) and not is_file


def accepts_stream(request: Request) -> bool:
    """Whether a request of ended jobs asks for a stream; HEAD would be one without a reader."""
    return request.method == "GET" and "text/event-stream" in request.headers.get("accept", "")


def _accepts_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _redirect(request: Request, place: str) -> Response:
    """Redirect to a place of this dashboard. With 303, a browser sends a GET without the form or the token."""
    return Response(status_code=303, headers={"Location": to_address(request, place), "Cache-Control": "no-store"})


def _refused(request: Request, error: HTTPException) -> Response:
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"{request.method} is not allowed here" if error.status_code == 405 else "there is no such address"
    return HttpError(error.status_code, code, message, headers=error.headers).response()
