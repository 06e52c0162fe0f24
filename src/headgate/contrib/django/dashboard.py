"""The dashboard below a path of a Django project, for the users of Django: `path("headgate/", dashboard_urls())`."""

# Django has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.cache import patch_cache_control
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from headgate.contrib.django.backend import app_with_tasks, dashboard_namespace, headgate_backend, require_backend
from headgate.errors import HeadgateError
from headgate.http import CallbackAuth, Dashboard, Role, User, dashboard
from headgate.http.http_error import http_error_of
from headgate.http.site import accepts_stream
from headgate.http.stream import UNDER_WSGI

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

_USER = "headgate.user"

STALLED = 30.0
"""Seconds after which a stream ends if the client has not taken its next part: what is never read ends, too."""


def default_role(user: Any) -> Role | None:
    """Return "admin" for superusers, "viewer" for other staff, None for everybody else."""
    if not user.is_staff:
        return None
    return "admin" if user.is_superuser else "viewer"


class DashboardMount:
    """The dashboard of one backend in `TASKS`, for Django users that have a role."""

    def __init__(self, alias: str, role: Callable[[Any], Role | None], options: Mapping[str, Any]) -> None:
        self._alias = alias
        self._role = role
        self._options = options
        self._lock = threading.Lock()
        self._site: Dashboard | None = None

    def user(self, user: Any) -> User | None:
        """Return a user of Django as one of the dashboard; None for a user without a role."""
        role = self._role(user) if user.is_active else None
        return None if role is None else User(user.get_username(), role)

    def app_for(self, user: User | None, path: str) -> ASGIApp:
        """Return the ASGI app that answers a request. The first call imports all tasks."""
        with self._lock:
            if self._site is None:
                self._site = dashboard(
                    app_with_tasks(self._alias),
                    auth=CallbackAuth(lambda request: cast("User | None", request.scope[_USER])),
                    # The same in all processes.
                    target=f"headgate.contrib.django.worker:{self._alias}",
                    secret=salted_hmac("headgate.dashboard", self._alias, algorithm="sha256").hexdigest(),
                    **self._options,
                )
        if user is not None and path.startswith("api/"):
            # The dashboard would open the app on the event loop of the request, which under WSGI ends with the request.
            # This opens it in the thread through which views enqueue.
            try:
                headgate_backend(self._alias).app._client.portal.open()
            except HeadgateError as error:
                return http_error_of(error).response()
        return self._site


def dashboard_urls(
    *,
    backend: str = "default",
    role: Callable[[Any], Role | None] = default_role,
    redact: Iterable[str] | None = (),
    title: str = "Headgate",
    read_only: bool = False,
) -> tuple[list[Any], str, str]:
    """Return the URLs of a backend's dashboard: `path("headgate/", dashboard_urls())`.

    `role` gets a user who is signed in to Django and returns "viewer", "operator", "admin", or None for no access.
    Default: superusers are admins, other staff are viewers. It may query the database. `redact`, `title` and
    `read_only` are those of `headgate.http.dashboard`. Raises ImproperlyConfigured if `TASKS` has no such backend.
    """
    # Not its kind: the settings of tests may have another one under the same alias.
    require_backend(backend)
    mount = DashboardMount(backend, role, {"redact": redact, "title": title, "read_only": read_only})
    for alias in connections:
        # With ATOMIC_REQUESTS Django refuses coroutines.
        transaction.non_atomic_requests(alias)(dashboard_view)
    views = [
        path("", dashboard_view, {"mount": mount}, name="dashboard"),
        path("<path:path>", dashboard_view, {"mount": mount}),
    ]
    return views, "headgate", dashboard_namespace(backend)


@csrf_exempt  # changes need the dashboard's own token
@login_not_required  # the front end expects a 401, not the page to which this would redirect
async def dashboard_view(request: Any, mount: DashboardMount, path: str = "", **_captured: Any) -> Any:
    """Answer a request to the dashboard, whose own path is `path`."""
    if not request.path.removesuffix(path).endswith("/"):
        raise ImproperlyConfigured('the path of the dashboard needs a slash at its end: path("headgate/", …)')
    # Reads the session and the user from the database.
    user = await sync_to_async(_user)(request, mount)
    if user is None and request.method in ("GET", "HEAD") and not path.startswith(("api/", "static/")):
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.get_full_path(), _login_url())
    is_wsgi = not isinstance(request, ASGIRequest)
    if user is not None and path == "api/v1/stream" and is_wsgi:
        # It would occupy a thread of the server for each browser. After this answer the front end polls; an error
        # status would be reported to ADMINS.
        return HttpResponse(status=204)
    app = await sync_to_async(mount.app_for)(user, path)
    if user is not None and path == "api/v1/events" and is_wsgi and accepts_stream(request):
        app = UNDER_WSGI.response()
    response = await call_asgi(app, {**scope_of(request, path), _USER: user}, request.body)
    patch_cache_control(response, private=True)
    return response


def _user(request: Any, mount: DashboardMount) -> User | None:
    if not hasattr(request, "user"):
        raise ImproperlyConfigured(
            'the dashboard needs the users of Django; add "django.contrib.auth.middleware.AuthenticationMiddleware" '
            "to MIDDLEWARE"
        )
    return mount.user(request.user)


def _login_url() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


# ------------------------------------------------------------------------------ calling the ASGI app of the dashboard


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
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    # The start and one part: the app makes the next one when the client takes it.
    room = asyncio.Semaphore(2)

    async def receive() -> Message:
        if not unread:
            # Django cancels the view when the client disconnects, so this has nothing to report.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        stalled = asyncio.get_running_loop().call_later(STALLED, calling.cancel)
        await room.acquire()
        stalled.cancel()
        messages.put_nowait(message)

    calling = asyncio.ensure_future(app(scope, receive, send))
    calling.add_done_callback(lambda _: messages.put_nowait(None))
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
                room.release()
                yield message["body"]
                message = await messages.get()
        finally:
            calling.cancel()

    # GZipMiddleware would compress each part by itself, and some browsers read only the first of such parts.
    return StreamingHttpResponse(parts(), status=status, headers=headers | {"Content-Encoding": "identity"})
