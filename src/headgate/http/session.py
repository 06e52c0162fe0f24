"""The signed-in user, and what the page needs before it can show anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headgate.http.auth import Role
from headgate.http.caller import Caller
from headgate.version import __version__


class SessionView(msgspec.Struct, frozen=True):
    """The user, and what they `can` do: "operate" jobs, queues and schedules; "admin" limits, and remove.

    `token` has to be sent as X-Headgate-Token with changes. `store` is the path of the store's file, or its URL without
    a password. `app` is how the command line names the app, `module:app`; null if the dashboard was not given that.
    Fields that match `redacted` are hidden. `can_sign_out` is true if POST /logout can end the session.
    """

    user: str
    role: Role
    can: Sequence[Literal["operate", "admin"]]
    token: str
    title: str
    store: str
    app: str | None
    version: str
    now: datetime
    read_only: bool
    can_sign_out: bool
    redacted: Sequence[str]


async def session(caller: Caller) -> SessionView:
    """Return the signed-in user, their rights, and the token for changes."""
    can: list[Literal["operate", "admin"]] = []
    if not caller.read_only:
        can += ["operate"] if caller.user.may("operator") else []
        can += ["admin"] if caller.user.may("admin") else []
    return SessionView(
        user=caller.user.name,
        role=caller.user.role,
        can=can,
        token=caller.token,
        title=caller.title,
        store=caller.admin.address,
        app=caller.target,
        version=__version__,
        now=caller.admin.now(),
        read_only=caller.read_only,
        can_sign_out=caller.can_sign_out,
        redacted=caller.redaction.patterns,
    )
