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
