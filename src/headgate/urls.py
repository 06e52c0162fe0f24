"""URLs for display in errors, log lines, lists and the dashboard: without their secrets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote

HIDDEN = "***"

_FILES = ("sqlite", "memory")
"""Schemes without user and password: an `@` belongs to the path."""

_USER = re.compile(r"[\w.%~+-]{1,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[\w.-]*)(:\d{1,5})?")
_OPTIONS = re.compile(r"\?[\w-]+=")
_OPTION = re.compile(r"(?i)\b([\w-]*(?:pass|pwd|secret|token|key|auth)[\w-]*)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")
_PLAIN_OPTIONS = {"host", "port", "sslmode", "target_session_attrs"}
_SEPARATORS = re.compile(r"[/#?@:&=,]")

_SHORTEST = 3
"""The shortest secret that is searched in the text of an error; shorter ones would match everywhere."""


def displayed_url(url: str) -> str:
    """Return a URL without its password, options and fragment: `postgresql://ada@host:5432/shop`.

    The URL may be malformed: a password may contain `/ # ? @ :` unescaped, or be in the place of a port; the scheme may
    be missing or unknown. A part that may be a secret is replaced by `***`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _without_scheme(url)
    if scheme in _FILES and (not rest or rest.startswith("/")):
        return f"{scheme}://{rest.partition('?')[0]}"
    credentials, at, place = rest.rpartition("@")
    if _OPTIONS.search(credentials):
        # The `@` may be part of the password, or of an option after the host.
        return f"{scheme}://{HIDDEN}"
    hosts, slash, path = place.partition("?")[0].partition("#")[0].partition("/")
    shown = ",".join(_shown_host(host) for host in hosts.split(","))
    return f"{scheme}://{_shown_user(credentials)}{at}{shown}{slash}{path}"


def without_secrets(text: str, url: str) -> str:
    """Return the text of an error about a URL with every secret part of that URL replaced by `***`.

    URL parsers quote the part that they could not parse, which may be a piece of the password.
    """
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def missing_certificate(url: str) -> str | None:
    """Return the option of a PostgreSQL URL, or its variable, whose file does not exist: `sslrootcert=/etc/ca.pem`."""
    options = dict(parse_qsl(url.partition("?")[2]))
    for option in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        name = option if options.get(option) else f"PG{option.upper()}"
        path = options.get(name) or os.environ.get(name)
        if path and not Path(path).exists():
            return f"{name}={path}"
    return None


def _without_scheme(url: str) -> str:
    """Return `host/database`, `ada:secret@host/database` or `host=… password=…` without secrets."""
    if "=" in url and "@" not in url.partition("=")[0]:
        return _OPTION.sub(rf"\1={HIDDEN}", url.partition("?")[0])
    _, at, place = url.rpartition("@")
    if at:
        return f"{HIDDEN}@{place.partition('?')[0]}"
    head, colon, _ = url.partition("?")[0].partition(":")
    return f"{head}{colon}{HIDDEN}" if colon else head


def _shown_user(credentials: str) -> str:
    user = credentials.partition(":")[0]
    return user if not user or _USER.fullmatch(user) else HIDDEN


def _shown_host(host: str) -> str:
    if _HOST.fullmatch(host):
        return host
    return f"{host.partition(':')[0]}:{HIDDEN}" if _USER.fullmatch(host.partition(":")[0]) else HIDDEN


def _secrets(url: str) -> set[str]:
    """Return the secrets of a URL: whole, decoded, and in the pieces that a parser may split them into."""
    rest = url.partition("://")[2] or url
    credentials, at, place = rest.rpartition("@")
    wholes = [credentials.partition(":")[2]] if at else []
    if _OPTIONS.search(credentials) or _shown_user(credentials) != credentials.partition(":")[0]:
        wholes.append(credentials)
    wholes += [
        host.partition(":")[2] or host for host in place.partition("/")[0].split(",") if not _HOST.fullmatch(host)
    ]
    wholes += [value for name, value in parse_qsl(rest.partition("?")[2]) if name not in _PLAIN_OPTIONS]
    wholes += [match[2].strip("'") for match in _OPTION.finditer(url)]
    pieces = {piece for whole in wholes for piece in (whole, *_SEPARATORS.split(whole))}
    return {form for piece in pieces for form in (piece, unquote(piece)) if len(form) >= _SHORTEST}
