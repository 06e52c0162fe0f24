"""Sessions of browsers: a signed cookie that names the user, ends after 12 hours, and is revoked at the sign-out."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headgate.clock import SECOND, Clock
from headgate.errors import DeclarationError, HeadgateError
from headgate.http.auth import Role, SessionAuth, User
from headgate.jobs.audit import SIGN_OUTS_KEPT, AuditEntry

LASTS = SIGN_OUTS_KEPT
"""Seconds after which users have to sign in again."""

FRESH_FOR = 2 * SECOND
"""Microseconds for which the sign-outs that were read are not read again."""

PATIENCE = 1.0
"""Seconds for which a request waits for them; if the store does not answer, those that are known count."""

OVERLAP = 60 * SECOND
"""Microseconds of sign-outs that are read again: an entry may be committed later than entries after it."""

LONGEST_COOKIE = 4096

MOST_UNSWEPT = 1000
"""Ended sessions after which those that would have ended by now are forgotten."""

ReadSignOuts = Callable[[int], Awaitable[Sequence[AuditEntry]]]

_log = logging.getLogger("headgate.http")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A signed-in user in one browser, until `ends_at` (microseconds since the epoch)."""

    id: str
    user: User
    ends_at: int

    @property
    def began_at(self) -> int:
        return self.ends_at - LASTS * SECOND


class _Claims(msgspec.Struct, array_like=True):
    id: str
    name: str
    role: Role
    ends_at: int


class Sessions:
    """Begins, finds and ends sessions.

    The cookie contains the session, signed with `secret` and with the auth's secret of the user, so a changed password
    ends the sessions that began with the old one. A session has ended if this process has ended it, or if a sign-out of
    the last 12 hours in the store names it: all processes with the same secret read these, two seconds late at most.
    """

    def __init__(self, auth: SessionAuth, secret: bytes, clock: Clock) -> None:
        self._auth = auth
        self._secret = secret
        self._clock = clock
        self._ended: dict[str, int] = {}
        self._swept_at = MOST_UNSWEPT
        self._ended_until: dict[str, int] = {}
        self._read: ReadSignOuts | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began_reading_at: int | None = None
        self._newest_at = 0

    def share(self, read: ReadSignOuts) -> None:
        """Take the sign-outs of other processes into account; `read` returns those since an instant."""
        self._read = read

    async def refresh(self) -> None:
        """Read the sign-outs of all processes again, unless they are fresh."""
        self.begin_refresh()
        if (reading := self._reading) is not None and self._began_reading_at is not None:
            left = PATIENCE - (self._clock.monotonic() - self._began_reading_at) / SECOND
            if left > 0:
                await asyncio.wait([reading], timeout=left)

    def begin_refresh(self) -> None:
        """As `refresh`, without waiting for them."""
        now = self._clock.monotonic()
        is_fresh = self._began_reading_at is not None and now - self._began_reading_at < FRESH_FOR
        if self._read is None or is_fresh or (self._reading is not None and not self._reading.done()):
            return
        self._began_reading_at = now
        self._reading = asyncio.ensure_future(self._read_again(self._read))

    async def _read_again(self, read: ReadSignOuts) -> None:
        try:
            found = await read(max(self._clock.now() - LASTS * SECOND, self._newest_at - OVERLAP))
        except HeadgateError as error:
            _log.warning("sign-outs in other processes could not be read: %s", error)
            return
        for entry in found:
            self._newest_at = max(self._newest_at, entry.at)
            if entry.action == "sign out everywhere":
                self.end_all(entry.subject, entry.at)
            elif entry.detail is not None:
                self.end(entry.detail, entry.at + LASTS * SECOND)

    async def close(self) -> None:
        """End a running read."""
        reading, self._reading = self._reading, None
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait([reading])

    def begin(self, user: User) -> str:
        """Begin a session, and return the value of its cookie."""
        # The clock of the store, which a sign-out everywhere has its time of, may be ahead.
        began_at = max(self._clock.now(), self._ended_until.get(user.name, 0) + 1)
        claims = _Claims(os.urandom(16).hex(), user.name, user.role, began_at + LASTS * SECOND)
        content = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
        return f"{content}.{self._signature(content, user)}"

    def find(self, value: str) -> BrowserSession | None:
        """Return the session of a cookie; None if it has ended, or is not valid."""
        content, _, signature = value[:LONGEST_COOKIE].partition(".")
        try:
            padded = content + "=" * (-len(content) % 4)
            claims = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True), type=_Claims)
            user = User(claims.name, claims.role)
        except (msgspec.MsgspecError, ValueError, RecursionError, DeclarationError):
            return None
        if not hmac.compare_digest(signature.encode(), self._signature(content, user).encode()):
            return None
        session = BrowserSession(claims.id, user, claims.ends_at)
        return session if self.is_current(session) and self._auth.has(user) else None

    def is_current(self, session: BrowserSession) -> bool:
        """Whether it has not ended since it was found."""
        is_ended = session.id in self._ended or session.began_at <= self._ended_until.get(session.user.name, 0)
        return session.ends_at > self._clock.now() and not is_ended

    def end(self, id: str, ends_at: int) -> None:
        """End a session, which would have ended then, so that its cookie is no longer accepted."""
        now = self._clock.now()
        if len(self._ended) >= self._swept_at:
            self._ended = {each: until for each, until in self._ended.items() if until > now}
            self._swept_at = max(MOST_UNSWEPT, 2 * len(self._ended))
        self._ended[id] = ends_at

    def end_all(self, name: str, at: int) -> None:
        """End the sessions of a user in all browsers that began until then."""
        self._ended_until[name] = max(self._ended_until.get(name, 0), at)

    def _signature(self, content: str, user: User) -> str:
        key = hmac.digest(self._secret, b"headgate session" + (self._auth.secret(user) or b""), "sha256")
        return hmac.digest(key, content.encode(), "sha256").hex()


def shown_cookies(request: Request) -> list[str]:
    """Return the values of the cookie in a request: several if a dashboard is mounted below another."""
    pairs = (each.partition("=") for header in request.headers.getlist("cookie") for each in header.split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == _name(request)]


def set_cookie(response: Response, request: Request, value: str, *, is_secure: bool) -> None:
    """Set the cookie of a session."""
    path = root_of(request) or "/"
    response.set_cookie(
        _name(request), value, max_age=LASTS, path=path, secure=is_secure, httponly=True, samesite="strict"
    )


def delete_cookie(response: Response, request: Request) -> None:
    """Delete the cookie of a session."""
    response.delete_cookie(_name(request), path=root_of(request) or "/", httponly=True, samesite="strict")


def _name(request: Request) -> str:
    """Return the name of the cookie, with the port: browsers share cookies between ports, and so between dashboards."""
    port = re.search(r":(\d{1,5})$", request.headers.get("host", ""))
    return f"headgate_session_{port[1]}" if port else "headgate_session"


def root_of(request: Request) -> str:
    """Return the path where it is mounted, escaped as browsers do: they compare the path of a cookie as a text."""
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/!$&'()*+,=:@[]|")
