"""Alerts as an app declares them: what they watch, and their target."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from headgate.arguments import is_utf8, parse_duration
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.jobs.alert import AlertMessage, Condition, parse_condition
from headgate.suggestion import did_you_mean
from headgate.tasks.callbacks import require_function
from headgate.tasks.queue import require_name

AlertFunction = Callable[[AlertMessage], Awaitable[object] | object]
"""`async def function(message)`, or a plain function, which is called in a thread."""

SHORTEST_REPEAT = 60 * SECOND
"""Microseconds."""

_ENCODED = "whsec_"
"""How a secret begins whose rest is base64, by the convention of Standard Webhooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAlert:
    """An alert of an app. While it lasts, it is sent again every `repeat` microseconds; None: never."""

    name: str
    conditions: Sequence[Condition]
    # They grant access, so they do not appear where this is printed.
    target: str | AlertFunction = field(repr=False)
    key: bytes | None = field(repr=False)
    repeat: int | None


def declared_alert(
    target: object,
    on: str | Iterable[str],
    name: str | None,
    repeat: Duration | None,
    secret: str | None,
) -> DeclaredAlert:
    """Return the alert of these arguments of `app.alert`. Raises DeclarationError."""
    where = "app.alert" if name is None else f"alert {name!r}"
    if isinstance(target, str):
        host = _host_of(target, where)
        name = host if name is None else name
    else:
        if not callable(target) or hasattr(target, "enqueue"):
            raise DeclarationError(
                f"{where}: the target is the URL of a webhook, or a function that gets the message, not "
                f"{type(target).__name__}; to enqueue a task, pass an async function that does it"
            )
        require_function(target, f"{where}: the target", ("message",))
        if secret is not None:
            raise DeclarationError(f"{where}: secret= signs the requests to a webhook; a function gets none")
        name = getattr(target, "__name__", None) if name is None else name
        if name is None or name == "<lambda>":
            raise DeclarationError(f"{where}: the target has no name; pass name=")
    require_name(name, "alert")
    where = f"alert {name!r}"
    conditions = _conditions(on, where)
    again = None if repeat is None else parse_duration(repeat, "repeat", where)
    if again is not None and again < SHORTEST_REPEAT:
        raise DeclarationError(
            f"{where}: repeat={repeat!r} is less than a minute; an alert that lasts is sent again after a minute or "
            "more, or with repeat=None never"
        )
    key = None if secret is None else _key_of(secret, where)
    return DeclaredAlert(name=name, conditions=conditions, target=target, key=key, repeat=again)


def _conditions(on: object, where: str) -> Sequence[Condition]:
    several = isinstance(on, Iterable) and not isinstance(on, str)
    conditions = [parse_condition(text, where) for text in (cast(Iterable[object], on) if several else [on])]
    if not conditions:
        raise DeclarationError(f'{where} has no condition; pass for example on=("queue_lag > 60", "node_lost")')
    for condition in conditions:
        if conditions.count(condition) > 1:
            raise DeclarationError(f"{where} has the condition {str(condition)!r} twice")
    return conditions


def _host_of(url: str, where: str) -> str:
    """Return the host of a webhook. Errors do not show the URL: its path is often its password."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise DeclarationError(f"{where}: the URL of the webhook has characters that have to be percent-encoded")
    try:
        parts = urlsplit(url)
        # Raised here if it is no number.
        _ = parts.port
    except ValueError as error:
        raise DeclarationError(f"{where}: the URL of the webhook cannot be read") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeclarationError(
            f"{where}: the target {url.partition(':')[0]!r:.40}… is not the URL of a webhook; "
            "write https://host/path, or pass a function"
        )
    if parts.username is not None:
        raise DeclarationError(
            f"{where}: the URL of the webhook names a user, which is not sent; pass a function that makes the request"
        )
    return parts.hostname


def _key_of(secret: object, where: str) -> bytes:
    if not isinstance(secret, str) or not secret or not is_utf8(secret):
        raise DeclarationError(f'{where}: secret= is a text that is not empty, as of os.environ["WEBHOOK_SECRET"]')
    if not secret.startswith(_ENCODED):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_ENCODED), validate=True)
    except ValueError as error:
        raise DeclarationError(f"{where}: what follows {_ENCODED!r} in secret= is not base64") from error


def require_known_tasks(alerts: Iterable[DeclaredAlert], tasks: Iterable[str]) -> None:
    """Raise DeclarationError for an alert on the failures of a task that is not declared."""
    known = list(tasks)
    for alert in alerts:
        for condition in alert.conditions:
            if condition.kind == "failures" and condition.subject is not None and condition.subject not in known:
                raise DeclarationError(
                    f"alert {alert.name!r} watches {str(condition)!r}, and this app declares no task "
                    f"{condition.subject!r}{did_you_mean(condition.subject, known)}"
                )
