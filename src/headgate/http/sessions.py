"""Sessions of browsers: a signed cookie that names the user, ends after 12 hours, and is revoked at the sign-out."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.clock import SECOND, Clock
from headgate.errors import DeclarationError
from headgate.http.auth import Role, SessionAuth, User

LASTS = 12 * 3600
"""Seconds after which users have to sign in again."""

LONGEST_COOKIE = 4096


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A signed-in user in one browser, until `ends_at` (microseconds since the epoch)."""

    id: str
    user: User
    ends_at: int


class _Claims(msgspec.Struct, array_like=True):
    id: str
    name: str
    role: Role
    ends_at: int


class Sessions:
    """Begins, finds and ends sessions.

    The cookie contains the session, signed with `secret` and with the auth's secret of the user, so a changed password
    ends the sessions that began with the old one. Sign-outs are stored in this process only.
    """

    def __init__(self, auth: SessionAuth, secret: bytes, clock: Clock) -> None:
        self._auth = auth
        self._secret = secret
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self, user: User) -> str:
        """Begin a session, and return the value of its cookie."""
        claims = _Claims(os.urandom(16).hex(), user.name, user.role, self._clock.now() + LASTS * SECOND)
        content = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
        return f"{content}.{self._signature(content, user)}"

    def find(self, value: str) -> BrowserSession | None:
        """Return the session of a cookie; None if it has ended, or is not valid."""
        content, _, signature = value[:LONGEST_COOKIE].partition(".")
        try:
            padded = content + "=" * (-len(content) % 4)
            claims = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=_Claims)
            user = User(claims.name, claims.role)
        except (binascii.Error, msgspec.MsgspecError, ValueError, DeclarationError):
            return None
        if not hmac.compare_digest(signature.encode(), self._signature(content, user).encode()):
            return None
        session = BrowserSession(claims.id, user, claims.ends_at)
        return session if self.is_current(session) and self._auth.has(user) else None

    def is_current(self, session: BrowserSession) -> bool:
        """Whether it has not ended since it was found."""
        return session.ends_at > self._clock.now() and session.id not in self._ended

    def end(self, session: BrowserSession) -> None:
        """End a session, so that its cookie is no longer accepted."""
        now = self._clock.now()
        self._ended = {id: ends_at for id, ends_at in self._ended.items() if ends_at > now}
        self._ended[session.id] = session.ends_at

    def _signature(self, content: str, user: User) -> str:
        key = hmac.digest(self._secret, b"headgate session" + (self._auth.secret(user) or b""), "sha256")
        return hmac.digest(key, content.encode(), "sha256").hex()


def shown_cookies(request: Request) -> list[str]:
    """Return the values of the cookie in a request: several if a dashboard is mounted below another."""
    pairs = (each.partition("=") for header in request.headers.getlist("cookie") for each in header.split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == _name(request)]


def set_cookie(response: Response, request: Request, value: str, *, is_secure: bool) -> None:
    """Set the cookie of a session."""
    response.set_cookie(
        _name(request), value, max_age=LASTS, path=_path(request), secure=is_secure, httponly=True, samesite="strict"
    )


def delete_cookie(response: Response, request: Request) -> None:
    """Delete the cookie of a session."""
    response.delete_cookie(_name(request), path=_path(request), httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """Return the name of the cookie, with the port: browsers share cookies between ports, and so between dashboards."""
    port = re.search(r":(\d{1,5})$", request.headers.get("host", ""))
    return f"headgate_session_{port[1]}" if port else "headgate_session"


def _path(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/") or "/"
