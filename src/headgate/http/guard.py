"""The guard: who is let in, and what they may do. It stands before everything that is served, pages and files too."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Literal

from starlette.requests import Request

from headgate.errors import DeclarationError
from headgate.http.auth import Auth, Refused, Role, User
from headgate.http.origin import canonical, is_local, is_same_site, peer_of
from headgate.http.refusal import Refusal, try_later
from headgate.limits.rate_limit import RateLimit
from headgate.limits.standalone.limiter import Limiter

FAILURES = "10/m"
"""Wrong passwords of one address: so many at once, and then one each 6 s."""

MOST_REFUSED = 1000
"""Wrong passwords that are known again; an older one counts anew."""

LOCAL = User("local", "admin")
"""Whoever asks from this machine, where nobody has to say who they are."""

TOKEN = "x-headgate-token"
"""The header of what changes something, with the token of the session."""


class Guard:
    """Tells who somebody is, and refuses what they may not do.

    With `"local"` everybody at this machine is let in; None is refused, so that nobody is let in by what was left out.
    `secret` signs the tokens; without one, and without one of the `auth`, it is random: then a token is good in this
    process only.
    """

    def __init__(
        self,
        auth: Auth | Literal["local"] | None,
        *,
        read_only: bool,
        trusted_proxies: Iterable[str],
        secret: bytes | None,
    ) -> None:
        if auth != "local" and not hasattr(auth, "user"):
            raise DeclarationError(_unsaid(auth))
        self._auth = None if auth == "local" else auth
        self._read_only = read_only
        self._trusted = frozenset(map(_proxy, trusted_proxies))
        self._secret = secret
        self._random = os.urandom(32)
        self._failures = Limiter(RateLimit(FAILURES, burst=10))
        self._refused: dict[bytes, None] = {}

    async def user(self, request: Request) -> User:
        """Who asks. Raises Refusal for who is not let in."""
        peer = None if request.client is None else request.client.host
        if self._auth is None:
            if not is_local(peer, request.headers, str(request.scope.get("http_version", "1.1"))):
                raise _not_local()
            return LOCAL
        # Some proxies add a header of their own instead of going on with the one that came, which anybody can write.
        address = peer_of(peer, ", ".join(request.headers.getlist("x-forwarded-for")), self._trusted)
        await self._require_patience(address)
        try:
            user = await self._auth.user(request)
        except Refused as refused:
            if self._is_news(address, refused.credential):
                await self._failures.try_acquire(address)
            raise self._unknown("this user name, password or token is not known here") from None
        if user is None:
            raise self._unknown("say who you are: this dashboard is for those who are known to it")
        # A callback takes its time, and guesses that are made all at once tell no more than one after the other.
        await self._require_patience(address)
        return user

    def _is_news(self, address: str, shown: str | None) -> bool:
        """Whether this credential was not refused to this address before; where it is not known, it may be a guess.

        A tab or a program that goes on with a password of yesterday guesses nothing, and must not lock out all who
        come from its address. What it shows is looked at each time all the same.
        """
        if shown is None:
            return True
        # Not to be found again by who reads the memory of the process.
        digest = hmac.digest(self._random, f"{address} {shown}".encode(errors="surrogatepass"), "sha256")
        if digest in self._refused:
            return False
        if len(self._refused) >= MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = None
        return True

    async def _require_patience(self, address: str) -> None:
        """Raise Refusal for an address from which too many have failed, whatever it shows now."""
        seen = await self._failures.snapshot(address)
        if not seen.available:
            raise Refusal(429, "too_many_failures", "too many wrong passwords; try again later", headers=try_later(6))

    def _unknown(self, message: str) -> Refusal:
        challenge = "" if self._auth is None else self._auth.challenge
        return Refusal(401, "unauthorized", message, headers={"WWW-Authenticate": challenge} if challenge else None)

    def token(self, user: User) -> str:
        """What this user has to send with what changes something."""
        own = None if self._auth is None else self._auth.secret(user)
        return hmac.new(
            self._secret or own or self._random, f"{user.role}:{user.name}".encode(), hashlib.sha256
        ).hexdigest()

    def require(self, request: Request, user: User, role: Role, *, changes: bool) -> None:
        """Raise Refusal unless the user may do what the role may, and meant to do it."""
        if not user.may(role):
            raise Refusal(403, "not_allowed", f"{user.name} is {user.role} here, and only {_who(role)} may do this")
        if not changes:
            return
        if self._read_only:
            raise Refusal(403, "read_only", "this dashboard only shows; nothing can be changed through it")
        if not is_same_site(request.headers, self._host(request)):
            raise Refusal(
                403,
                "other_site",
                "this was asked for by a page of another site; if it was not, the proxy in front of this has to pass "
                "the Host header on, or to be one of the trusted_proxies and send X-Forwarded-Host",
            )
        # No browser sends a bearer token by itself, so whoever sends one means it.
        if request.headers.get("authorization", "").lower().startswith("bearer "):
            return
        shown = request.headers.get(TOKEN, "")
        if not hmac.compare_digest(shown.encode(), self.token(user).encode()):
            raise Refusal(
                403, "bad_token", "the header X-Headgate-Token has to hold the `token` of /api/session; read it again"
            )

    def _host(self, request: Request) -> str:
        """The name that was asked for, as the browser knows it."""
        peer = "" if request.client is None else request.client.host
        forwarded = request.headers.get("x-forwarded-host") if canonical(peer) in self._trusted else None
        return forwarded or request.headers.get("host", "")


def _unsaid(auth: object) -> str:
    wrong = "" if auth is None else f", and {auth!r} is nothing that it knows"
    return (
        f"dashboard(app) has to be told who may see it{wrong}: dashboard(app, "
        'auth=BasicAuth(ada=("admin", password))), or a BearerAuth or CallbackAuth; dashboard(app, auth="local") lets '
        "in everybody at this machine, which is not for a server with a proxy in front of it"
    )


def _proxy(address: str) -> str:
    """One that is not an address would match nobody, and everybody behind it would be counted as one."""
    try:
        return canonical(str(ip_address(address)))
    except ValueError:
        raise DeclarationError(
            f"trusted_proxies: {address!r} is not an IP address; name each proxy by the address that it comes from"
        ) from None


def _who(role: Role) -> str:
    return {"viewer": "viewers", "operator": "operators and admins", "admin": "admins"}[role]


def _not_local() -> Refusal:
    return Refusal(
        403,
        "not_local",
        "this dashboard asks nobody who they are, so it answers only this machine, under the name localhost, and "
        "nobody through a proxy. Say who may see it: auth=BasicAuth(…), or `headgate dashboard --user …`",
    )
