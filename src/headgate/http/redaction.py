"""Redaction: which parts of payloads, results, headers, annotations and texts are hidden from all users."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property
from itertools import groupby
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from headgate.errors import DeclarationError
from headgate.jobs.encoded import is_encoded, shown_encoded
from headgate.jobs.job import JobError
from headgate.tasks.values import is_too_deep

HIDDEN = "[redacted]"

REQUEST = "idempotent_request"
"""The header of a job with a digest of the body that it was enqueued with, if that request had an idempotency key."""

ALWAYS = (
    "*password",
    "*passwd",
    "*passphrase",
    "*secret",
    "*secret_key",
    "*token",
    "*authorization",
    "*api_key",
    "*api-key",
    "*apikey",
    "*private_key",
    "cookie",
    "set-cookie",
    REQUEST,  # the hidden values are in the digest: they could be guessed
)
"""The fields that a dashboard hides unless it is made with `redact=None`."""

PREVIEW = 200
"""Characters of a payload that a list shows."""

LONGEST_PREVIEWED = 16_384
"""A longer payload is not decoded for a list, which may have 500 of them; only its size is shown."""

SHORTEST_SECRET = 4
"""Characters; a shorter value is not searched in texts, because it would match everywhere."""

DEEPEST = 4
"""Levels of JSON inside texts of JSON that are decoded; deeper ones, and too deep JSON, are searched as text."""


class Secrets(frozenset[str]):
    """Hidden values of one job, which are also hidden in its texts."""

    @cached_property
    def lengths(self) -> Mapping[str, set[int]]:
        """How long the values are, by how they begin."""
        found = groupby(sorted(self), lambda each: each[:SHORTEST_SECRET])
        return {begin: set(map(len, values)) for begin, values in found}


NO_SECRETS = Secrets()

# A name and what separates it from its value, as in `name=`, `"name": ` and `\\"name\\": `.
_NAME = re.compile(r"""(?<![\w-])(?P<name>[\w-]++)(?:\\*["'])?\s*[:=]\s*""")

# A value in quotes, which a cut text may lack at its end, in escaped quotes, or up to a blank or a bracket.
_VALUE = re.compile(
    r"""
    (?: "(?:[^"\\]|\\.?)*(?:"|\Z)
      | '(?:[^'\\]|\\.?)*(?:'|\Z)
      | (?P<quote>\\+["']).*?(?:(?P=quote)|\Z)
      | (?:(?:bearer|basic|digest|token|apikey)\s+)? [^\s,;&)\]}"']+
    )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)

_CREDENTIALS = re.compile(
    r"(?P<before>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}+://[^\s:/?#@]*+:)[^\s@/]++(?=@)", re.IGNORECASE
)


class Redaction:
    """Hides the fields that its patterns match, anywhere in a value.

    A pattern is a glob on the path of a field, its names joined by dots, which may begin at any level: `"password"` is
    every field of that name, `"card.number"` the number of each card, `"*_key"` each field that ends so. Case does not
    matter, and list indexes are not part of a path. Everything below a hidden field is hidden with it, even where a
    text contains it as JSON.

    In texts (errors, log lines, other fields) the hidden values of the job are hidden too, and what looks like a field
    of such a name (`password=…`), and the password of a URL. Log lines have no fixed grammar, so this helps, but is no
    guarantee.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for pattern in self.patterns:
            if not isinstance(pattern, str) or not pattern.strip("*.? "):
                raise DeclarationError(
                    f"redact={pattern!r}: a pattern names a field, such as 'password' or 'card.number'"
                )
        ends = [pattern.lower().removeprefix("*.") for pattern in self.patterns]
        self._path = re.compile("|".join(translate(f"*.{end}") for end in ends)) if ends else None
        # In a text, only the last name of a path can be recognized.
        self._name = re.compile("|".join(translate(end.rpartition(".")[2]) for end in ends))

    def __bool__(self) -> bool:
        return self._path is not None

    def hides(self, name: str) -> bool:
        """Return whether a field of this name, at the top of a value, is hidden."""
        return self._is_hidden(f"$.{name.lower()}")

    def json(self, text: str | None, secrets: Secrets = NO_SECRETS) -> msgspec.Raw | None:
        """Return a stored JSON text for an answer; text that is not JSON, or too deep, is returned as a JSON string.

        Of an encoded text, only the names of its codecs are returned.
        """
        if text is None:
            return None
        if is_encoded(text):
            return msgspec.Raw(msgspec.json.encode(shown_encoded(text)))
        value = _decoded(text)
        if self._path is None and value is not _UNREADABLE:
            return msgspec.Raw(text.encode())
        return msgspec.Raw(msgspec.json.encode(self._hide(text if value is _UNREADABLE else value, "$", secrets)))

    def preview(self, text: str, secrets: Secrets = NO_SECRETS) -> str:
        """Return how a stored JSON text begins, for a list; for an encoded text, the names of its codecs."""
        if is_encoded(text):
            return shown_encoded(text)
        if len(text) > LONGEST_PREVIEWED:
            return f"… {len(text):,} characters"
        if self._path is not None:
            text = bytes(self.json(text, secrets) or b"").decode()
        return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"

    def has_mark(self, value: Any) -> bool:
        """Return whether a value contains the mark of a hidden value: it was copied from what is shown."""
        match value:
            case dict():
                return any(map(self.has_mark, value.values()))
            case list():
                return any(map(self.has_mark, value))
        return self._path is not None and isinstance(value, str) and HIDDEN in value

    def mapping(self, values: Mapping[str, Any] | None, secrets: Secrets = NO_SECRETS) -> dict[str, Any] | None:
        """Return headers, annotations, or the data of an error."""
        if values is None:
            return None
        hidden: dict[str, Any] = self._hide(dict(values), "$", secrets)
        return hidden

    def secrets(self, *texts: str | None, fields: Sequence[Mapping[str, Any] | None] = ()) -> Secrets:
        """Return the values that are hidden in these JSON texts, and in these headers and annotations."""
        if self._path is None:
            return NO_SECRETS
        found: set[str] = set()
        for text in texts:
            if text is not None:
                self._collect(_decoded(text), "$", found, is_hidden=False)
        for each in fields:
            self._collect(dict(each or {}), "$", found, is_hidden=False)
        return Secrets(each for value in found if len(value) >= SHORTEST_SECRET for each in _written(value))

    def text(self, text: str, secrets: Secrets = NO_SECRETS) -> str:
        """Return a text written by users or programs."""
        if self._path is None:
            return text
        return self._without_fields(_CREDENTIALS.sub(rf"\g<before>{HIDDEN}", _without_values(text, secrets)))

    def error(self, error: JobError | None, secrets: Secrets = NO_SECRETS) -> JobError | None:
        """Return an error with its texts and its data."""
        if error is None or self._path is None:
            return error
        return JobError(
            type=error.type,
            message=self.text(error.message, secrets),
            traceback=None if error.traceback is None else self.text(error.traceback, secrets),
            data=self.mapping(error.data, secrets),
        )

    def _is_hidden(self, path: str) -> bool:
        return self._path is not None and self._path.match(path) is not None

    def _hide(self, value: Any, path: str, secrets: Secrets, depth: int = 0) -> Any:
        # A comprehension is a call on some Pythons, and JSON in texts may be nested 500 levels deep in all.
        match value:
            case dict():
                for name, each in (value := dict(value)).items():
                    below = f"{path}.{name.lower()}"
                    value[name] = HIDDEN if self._is_hidden(below) else self._hide(each, below, secrets, depth)
            case list():
                for index, each in enumerate(value := list(value)):
                    value[index] = self._hide(each, path, secrets, depth)
            case str() if self._path is not None:
                inner = _json_inside(value) if depth < DEEPEST else _UNREADABLE
                if inner is _UNREADABLE:
                    return self.text(value, secrets)
                shown = self._hide(inner, path, secrets, depth + 1)
                return value if shown == inner else msgspec.json.encode(shown).decode()
        return value

    def _without_fields(self, text: str) -> str:
        """Return the text without the values of what looks like a hidden field."""
        kept: list[str] = []
        end = 0
        for found in _NAME.finditer(text):
            if found.start() < end or not self._name.match(found["name"].lower()):
                continue
            value = _VALUE.match(text, found.end())
            if value is not None:
                kept += [text[end : found.end()], HIDDEN]
                end = value.end()
        return "".join([*kept, text[end:]])

    def _collect(self, value: Any, path: str, found: set[str], *, is_hidden: bool, depth: int = 0) -> None:
        match value:
            case dict():
                for name, each in value.items():
                    below = f"{path}.{name.lower()}"
                    self._collect(each, below, found, is_hidden=is_hidden or self._is_hidden(below), depth=depth)
            case list():
                for each in value:
                    self._collect(each, path, found, is_hidden=is_hidden, depth=depth)
            case str() | int() | float() if is_hidden and not isinstance(value, bool):
                if value != HIDDEN:
                    found.add(str(value))
            case str() if depth < DEEPEST:
                self._collect(_json_inside(value), path, found, is_hidden=False, depth=depth + 1)


_UNREADABLE = object()
"""The result of decoding a text that is not JSON, or nested too deeply."""


def _decoded(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
        return _UNREADABLE if is_too_deep(text.encode()) else value
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _UNREADABLE


def _json_inside(text: str) -> Any:
    """Return the object or list that a text contains as JSON."""
    return _decoded(text) if text.lstrip()[:1] in ("{", "[") else _UNREADABLE


def _without_values(text: str, secrets: Secrets) -> str:
    """Return the text without the hidden values, in a time that does not grow with their number."""
    if len(secrets) < 50 and not any(map(text.__contains__, secrets)):  # a few are looked for faster one by one
        return text
    lengths, places, shown = secrets.lengths, defaultdict[str, list[int]](list), list(text)
    for start in range(len(text)):
        if (begin := text[start : start + SHORTEST_SECRET]) in lengths:
            places[begin].append(start)
    # The longest first: one may be a part of another. What is hidden already is as long, so it has one of the ends.
    for length, begin in sorted(((each, found) for found in places for each in lengths[found]), reverse=True):
        places[begin] = [start for start in places[begin] if len(shown[start]) == 1]
        for start in places[begin]:
            end = start + length
            if end <= len(text) and len(shown[start]) == len(shown[end - 1]) == 1 and text[start:end] in secrets:
                shown[start:end] = [HIDDEN, *[""] * (length - 1)]
    return "".join(shown)


def _written(value: str) -> Iterable[str]:
    """Return the forms of a value in a text: as it is, as Python shows it, as JSON, and as a part of a URL."""
    return value, repr(value)[1:-1], msgspec.json.encode(value).decode()[1:-1], quote(value, safe=""), quote_plus(value)
