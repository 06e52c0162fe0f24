"""JSON text, as statements take it."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def as_json(value: Any) -> str:
    """A value as JSON text."""
    return _encode(value).decode()


def optional_json(value: Any) -> str | None:
    """A value as JSON text; None stays NULL."""
    return None if value is None else _encode(value).decode()


def limit_needle(limit: str) -> str:
    """What stands in the draws of whoever draws on a limit, and nowhere else: quotes inside of names are escaped."""
    return f"[{as_json(limit)},"
