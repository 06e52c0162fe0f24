"""JSON text as statements take it."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def optional_json(value: Any) -> str | None:
    """Return a value as JSON text; None stays None."""
    return None if value is None else _encode(value).decode()


def limit_needle(limit: str) -> str:
    """Return text that is in the stored draws on a limit and in no others: quotes inside names are escaped."""
    return f"[{as_json(limit)},"


def tag_needle(tag: str) -> str:
    """Return text that is in stored options with this tag, once their brackets are commas, and in no others."""
    return f"{as_json(tag)},"


def member_needle(name: str, value: str | float | bool) -> str:
    """Return text that is in a stored JSON object with this member, once its first brace is a comma, and in no others.

    Inside of texts, a quote never follows a comma: it is escaped. After a number, something has to end it.
    """
    return f",{as_json(name)}:{as_json(value)}"
