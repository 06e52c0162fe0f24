"""Redaction: what of payloads, results, headers and texts is not shown to anybody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any

import msgspec

from headgate.errors import DeclarationError
from headgate.jobs.job import JobError

HIDDEN = "[redacted]"

PREVIEW = 200
"""Characters of a payload that a list shows."""

LONGEST_PREVIEWED = 16_384
"""A longer payload is not read for a list, which may hold 500 of them; only its size is told."""

SHORTEST_SECRET = 4
"""Characters; a shorter value is not looked for in texts: it would be found everywhere."""

Secrets = frozenset[str]
"""Values of one job that are hidden, and are not to be read in its texts either."""

NO_SECRETS: Secrets = frozenset()


class Redaction:
    """Hides the fields that its patterns name, wherever they stand.

    A pattern is a glob on the path of a field, its names joined by dots, from wherever it begins: `"password"` is every
    field of that name, `"card.number"` the number of each card, `"*_key"` each field that ends so. Upper and lower case
    are the same, and the places in a list do not count. All that is below a field that is hidden is hidden with it.

    In texts (errors, log lines) the hidden values of the job are hidden too, and what looks like a field of such a
    name: `password=…`. Nobody writes a log line by a grammar, so this is a help, and no promise.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for pattern in self.patterns:
            if not isinstance(pattern, str) or not pattern.strip("*.? "):
                raise DeclarationError(f"redact={pattern!r}: a pattern names a field, as 'password' or 'card.number'")
        ends = [pattern.lower().removeprefix("*.") for pattern in self.patterns]
        self._path = re.compile("|".join(translate(f"*.{end}") for end in ends)) if ends else None
        self._fields = re.compile(
            rf"""(?P<name>["']?\b(?:{"|".join(_in_text(end) for end in ends)})\b["']?\s*[:=]\s*)"""
            r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)\]}]+)""",
            re.IGNORECASE,
        )

    def __bool__(self) -> bool:
        return self._path is not None

    def json(self, text: str | None) -> msgspec.Raw | None:
        """A stored JSON text, to be written into an answer."""
        if text is None:
            return None
        if self._path is None:
            return msgspec.Raw(text.encode())
        return msgspec.Raw(msgspec.json.encode(self._hide(msgspec.json.decode(text), "$")))

    def preview(self, text: str) -> str:
        """The beginning of a stored JSON text, for a list."""
        if len(text) > LONGEST_PREVIEWED:
            return f"… {len(text):,} characters"
        if self._path is not None:
            text = msgspec.json.encode(self._hide(msgspec.json.decode(text), "$")).decode()
        return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"

    def mapping(self, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Headers, or what an error carries."""
        if values is None:
            return None
        hidden: dict[str, Any] = self._hide(dict(values), "$")
        return hidden

    def secrets(self, *texts: str | None, headers: Mapping[str, str] | None = None) -> Secrets:
        """The values that are hidden of these JSON texts and headers."""
        if self._path is None:
            return NO_SECRETS
        found: set[str] = set()
        for text in texts:
            if text is not None:
                self._collect(msgspec.json.decode(text), "$", found, is_hidden=False)
        self._collect(dict(headers or {}), "$", found, is_hidden=False)
        return frozenset(each for value in found if len(value) >= SHORTEST_SECRET for each in _written(value))

    def text(self, text: str, secrets: Secrets = NO_SECRETS) -> str:
        """A text that people or programs wrote."""
        if self._path is None:
            return text
        # The longest first: one may be a part of another.
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return self._fields.sub(rf"\g<name>{HIDDEN}", text)

    def error(self, error: JobError | None, secrets: Secrets = NO_SECRETS) -> JobError | None:
        """An error with its texts and its data."""
        if error is None or self._path is None:
            return error
        data = self.mapping(error.data)
        return JobError(
            type=error.type,
            message=self.text(error.message, secrets),
            traceback=None if error.traceback is None else self.text(error.traceback, secrets),
            data=None
            if data is None
            else {name: self.text(value, secrets) if isinstance(value, str) else value for name, value in data.items()},
        )

    def _is_hidden(self, path: str) -> bool:
        return self._path is not None and self._path.match(path) is not None

    def _hide(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if self._is_hidden(below := f"{path}.{name.lower()}") else self._hide(each, below)
                for name, each in value.items()
            }
        return [self._hide(each, path) for each in value] if isinstance(value, list) else value

    def _collect(self, value: Any, path: str, found: set[str], *, is_hidden: bool) -> None:
        match value:
            case dict():
                for name, each in value.items():
                    below = f"{path}.{name.lower()}"
                    self._collect(each, below, found, is_hidden=is_hidden or self._is_hidden(below))
            case list():
                for each in value:
                    self._collect(each, path, found, is_hidden=is_hidden)
            case str() | int() | float() if is_hidden and not isinstance(value, bool):
                found.add(str(value))


def _written(value: str) -> Iterable[str]:
    """A value as it may stand in a text: as it is, as Python shows it, and as JSON."""
    return value, repr(value)[1:-1], msgspec.json.encode(value).decode()[1:-1]


def _in_text(pattern: str) -> str:
    """The last name of a pattern, as it may stand in a text."""
    name = pattern.rpartition(".")[2]
    return "".join(r"[\w-]{0,40}" if sign == "*" else r"[\w-]" if sign == "?" else re.escape(sign) for sign in name)
