"""URLs as they may be shown: in errors, log lines, lists and on the dashboard, without what is secret in them."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

HIDDEN = "***"

_FILES = ("sqlite", "memory")
"""Schemes without user and password: an `@` belongs to the path."""

_USER = re.compile(r"[\w.%~+-]{1,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[\w.-]*)(:\d{1,5})?")
_OPTIONS = re.compile(r"\?[\w-]+=")
_OPTION = re.compile(r"(?i)\b([\w-]*(?:pass|pwd|secret|token|key|auth)[\w-]*)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")
_SEPARATORS = re.compile(r"[/#?@:&=,]")

_SHORTEST = 3
"""Characters of a secret that are looked for in the text of an error; fewer would be found everywhere."""


def displayed_url(url: str) -> str:
    """Return a URL without its password, options and fragment: `postgresql://ada@host:5432/shop`.

    It need not be well formed. A password may hold `/ # ? @ :` as they are, or stand where a port should; the scheme
    may be missing or unknown. What cannot be told from a secret is shown as `***`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _without_scheme(url)
    if scheme in _FILES and (not rest or rest.startswith("/")):
        return f"{scheme}://{rest.partition('?')[0]}"
    credentials, at, place = rest.rpartition("@")
    if _OPTIONS.search(credentials):
        # The `@` may be one of the password, or of an option behind the host.
        return f"{scheme}://{HIDDEN}"
    hosts, slash, path = place.partition("?")[0].partition("#")[0].partition("/")
    shown = ",".join(_shown_host(host) for host in hosts.split(","))
    return f"{scheme}://{_shown_user(credentials)}{at}{shown}{slash}{path}"


def without_secrets(text: str, url: str) -> str:
    """Return the text of an error about a URL with every secret part of that URL replaced by `***`.

    The parsers of URLs quote what they could not read, which may be a piece of the password.
    """
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _without_scheme(url: str) -> str:
    """`host/database`, `ada:secret@host/database`, or words such as `host=… password=…`."""
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
    """What must not be shown of a URL, whole, decoded, and in the pieces that a parser may have cut it into."""
    rest = url.partition("://")[2] or url
    credentials, at, place = rest.rpartition("@")
    wholes = [credentials.partition(":")[2]] if at else []
    if _OPTIONS.search(credentials) or _shown_user(credentials) != credentials.partition(":")[0]:
        wholes.append(credentials)
    wholes += [
        host.partition(":")[2] or host for host in place.partition("/")[0].split(",") if not _HOST.fullmatch(host)
    ]
    wholes += [value for _, value in parse_qsl(rest.partition("?")[2])]
    wholes += [match[2].strip("'") for match in _OPTION.finditer(url)]
    pieces = {piece for whole in wholes for piece in (whole, *_SEPARATORS.split(whole))}
    return {form for piece in pieces for form in (piece, unquote(piece)) if len(form) >= _SHORTEST}
