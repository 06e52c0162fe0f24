"""Access control: authentication, sign-in and roles, checked before everything that is served, even static files."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import cast
from urllib.parse import urlsplit

from starlette.requests import Request

from headgate.clock import Clock, sleep
from headgate.errors import DeclarationError
from headgate.http.auth import Auth, CallbackAuth, Role, SessionAuth, SignInFields, SignInForm, User, WrongCredential
from headgate.http.failures import SignInFailures
from headgate.http.http_error import HttpError
from headgate.http.sessions import BrowserSession, Sessions, shown_cookies

TOKEN = "x-headgate-token"
"""The header of requests that change something, with the token of the session."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """The user of a request, and the session of their browser; None if each request carries a credential."""

    user: User
    session: BrowserSession | None = None


class AccessControl:
    """Authenticates users, signs them in and out, and refuses what their role does not allow.

    `secret` signs sessions and tokens; without one they are valid in this process only, except the tokens of an `auth`
    that has a secret of its own.
    """

    def __init__(
        self,
        auth: Auth | None,
        *,
        read_only: bool,
        trusted_proxies: Iterable[str],
        secret: bytes | None,
        clock: Clock,
    ) -> None:
        if auth is None or not hasattr(auth, "user"):
            wrong = "" if auth is None else f"; {auth!r} is not supported"
            raise DeclarationError(
                f"dashboard(app) needs auth, which decides who may use it{wrong}: dashboard(app, "
                'auth=BasicAuth(ada=("admin", password))), or a BearerAuth, CallbackAuth or OneTimeToken'
            )
        self._auth = auth
        self._signs_in = cast("SessionAuth", auth) if hasattr(auth, "sign_in") else None
        self._read_only = read_only
        self._trusted = frozenset(map(_proxy, trusted_proxies))
        self._secret = secret
        self._random = os.urandom(32)
        self._clock = clock
        self._failures = SignInFailures(clock)
        self.sessions = None if self._signs_in is None else Sessions(self._signs_in, secret or self._random, clock)

    @property
    def form(self) -> SignInForm | None:
        """The fields of the sign-in page; None if the host app signs users in."""
        return None if self._signs_in is None else self._signs_in.form

    @property
    def sign_in_url(self) -> str | None:
        """The address where the host app signs users in, if it is configured."""
        return self._auth.sign_in_url if isinstance(self._auth, CallbackAuth) else None

    async def visitor(self, request: Request) -> RequestIdentity:
        """Return the user of a request. Raises HttpError if there is none."""
        sessions = self.sessions
        cookies = [] if sessions is None else shown_cookies(request)
        if sessions is not None and cookies:
            await sessions.refresh()
            for cookie in cookies:
                if (session := sessions.find(cookie)) is not None:
                    return RequestIdentity(session.user, session)
        shown = request.headers.get("authorization")
        user = await self._with_delay(request, partial(self._auth.user, request), _basic_name(shown), shown)
        if user is not None:
            return RequestIdentity(user)
        if cookies:
            raise self._unknown("your session has ended; sign in again")
        raise self._unknown("sign in first")

    async def sign_in(self, request: Request, fields: SignInFields) -> tuple[User, str]:
        """Return the user and the cookie of a new session. Raises HttpError for a wrong credential."""
        if self._signs_in is None or self.sessions is None:
            raise self._unknown("this dashboard has no sign-in page; sign in to the app that it is part of")
        shown = f"{fields.name}:{fields.secret}"
        user = await self._with_delay(request, partial(self._signs_in.sign_in, fields), fields.name, shown)
        assert user is not None
        await self.sessions.refresh()
        return user, self.sessions.begin(user)

    async def _with_delay(
        self, request: Request, check: Callable[[], Awaitable[User | None]], name: str, shown: str | None
    ) -> User | None:
        """Return the result of a check. If a credential was shown, a right one takes its turn like a wrong one.

        `name` is as it was shown: it may differ from the name of the result, which counts. An auth without a sign-in
        may use the same header for a check of its own that waits for others, so only those with one are bounded.
        """
        # Beside a token anybody can show another name each time.
        name = name if self.form is not None and self.form.has_name else ""
        address = self.address(request)
        is_bounded = self._signs_in is not None and shown is not None
        try:
            with self._failures.checking(address, name, shown or "") if is_bounded else nullcontext():
                user = await check()
        except WrongCredential as refused:
            if self._failures.add(address, refused.name, refused.credential):
                wait = self._failures.turn(address, refused.name, refused.credential)
            else:
                # It was counted, and took its turn, when it came first.
                wait = self._failures.delay(address, refused.name)
            await sleep(self._clock, wait)
            raise self._unknown("this user name, password or token is wrong") from None
        if user is None or shown is None:
            return user
        if (wait := self._failures.turn(address, user.name, shown)) > 0:
            await sleep(self._clock, wait)
        self._failures.forget(address, user.name)
        return user

    def address(self, request: Request) -> str:
        """Return the client's address, as far as trusted proxies pass it on."""
        peer = None if request.client is None else request.client.host
        # Some proxies add a header of their own after one that the client has sent and that can have any content.
        return peer_of(peer, ", ".join(request.headers.getlist("x-forwarded-for")), self._trusted)

    def _unknown(self, message: str) -> HttpError:
        challenge = self._auth.challenge
        return HttpError(401, "unauthorized", message, headers={"WWW-Authenticate": challenge} if challenge else None)

    def token(self, user: User) -> str:
        """Return the token that this user has to send with changes."""
        own = self._auth.secret(user)
        return hmac.new(
            self._secret or own or self._random, f"{user.role}:{user.name}".encode(), hashlib.sha256
        ).hexdigest()

    def require(self, request: Request, visitor: RequestIdentity, role: Role, *, changes: bool) -> None:
        """Raise HttpError unless the user may do what the role may, and the request is not forged by another site."""
        user = visitor.user
        if not user.may(role):
            roles = {"viewer": "viewers", "operator": "operators and admins", "admin": "admins"}[role]
            raise HttpError(403, "not_allowed", f"{user.name} is {user.role} here, and only {roles} may do this")
        if not changes:
            return
        if self._read_only:
            raise HttpError(403, "read_only", "this dashboard is read-only")
        self.require_intent(request, visitor)

    def require_intent(self, request: Request, visitor: RequestIdentity) -> None:
        """Raise HttpError unless the user made this request, and not a page of another site."""
        self.require_same_site(request)
        # No browser sends a bearer token by itself, so a request with one is intended.
        if visitor.session is None and request.headers.get("authorization", "").lower().startswith("bearer "):
            return
        shown = request.headers.get(TOKEN, "")
        if not hmac.compare_digest(shown.encode(), self.token(visitor.user).encode()):
            raise HttpError(
                403,
                "bad_token",
                "the header X-Headgate-Token must contain the `token` of /api/v1/session; read it again",
            )

    def require_same_site(self, request: Request) -> None:
        """Raise HttpError for a request that a page of another site has made."""
        if not is_same_site(request.headers, self._forwarded(request, "host") or request.headers.get("host", "")):
            raise HttpError(
                403,
                "other_site",
                "this request came from another site's page; if it did not, let the proxy in front of the dashboard "
                "pass the Host header on, or add it to trusted_proxies and let it send X-Forwarded-Host",
            )

    def is_https(self, request: Request) -> bool:
        """Whether the browser uses HTTPS, according to the browser, the server or a trusted proxy."""
        if request.headers.get("origin", "").startswith("https://"):
            return True
        return (self._forwarded(request, "proto") or str(request.scope.get("scheme", ""))).lower() == "https"

    def _forwarded(self, request: Request, name: str) -> str:
        """Return what a trusted proxy passes on; of several proxies, the first one has it from the browser."""
        peer = "" if request.client is None else request.client.host
        passed = request.headers.get(f"x-forwarded-{name}", "") if canonical(peer) in self._trusted else ""
        return passed.partition(",")[0].strip()


def _proxy(address: str) -> str:
    """Return the address. Anything else would match no proxy, and all clients behind it would count as one."""
    try:
        return canonical(str(ip_address(address)))
    except ValueError:
        raise DeclarationError(
            f"trusted_proxies: {address!r} is not an IP address; list each proxy by its IP address"
        ) from None


def _basic_name(shown: str | None) -> str:
    """Return the name in an Authorization header; "" if it has none."""
    kind, _, value = (shown or "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[0]
    except ValueError:
        return ""


# -------------------------------------------------------------------------------------------- where a request is from


def is_same_site(headers: Mapping[str, str], host: str) -> bool:
    """Whether a request may change something: a browser sends it from a page of this very origin.

    Browsers send Sec-Fetch-Site; older ones, and those without HTTPS, send Origin. A client that sends neither is not a
    browser, and sends no credentials of a user by itself. Some proxies add the port of the scheme to the host.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    port = {"http": ":80", "https": ":443"}.get(parts.scheme)
    return port is not None and bool(parts.netloc) and parts.netloc.lower() == host.lower().removesuffix(port)


def peer_of(peer: str | None, forwarded_for: str | None, trusted: frozenset[str]) -> str:
    """Return the address by which failures are counted: that of the client, if trusted proxies pass it on.

    It is the last address that is not of a trusted proxy, because clients can write any address before it. For IPv6 it
    is the network of 64 bits, which belongs to one client.
    """
    found = peer or ""
    for hop in reversed((forwarded_for or "").split(",")):
        if canonical(found) not in trusted:
            break
        found = hop.strip() or found
    # Some proxies add the port, which differs each time.
    parsed = _address(found) or _address(found.rpartition(":")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((parsed, 64), strict=False))
    return found if parsed is None else str(parsed)


def canonical(address: str) -> str:
    """Return the canonical form of an address, such as 10.0.0.1 for ::ffff:10.0.0.1; other text stays as it is."""
    parsed = _address(address)
    return address if parsed is None else str(parsed)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
