"""Round trips: the part of a value that JSON does not return as it was."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from headgate.errors import USER_CODE_ERRORS
from headgate.tasks.values import to_json

MAX_DEPTH = 100
"""How deep a payload may be nested; a deeper one could reach Python's recursion limit, here or in another process."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class RoundTripDifference(NamedTuple):
    """A part of a value that has changed: its path ("" = the value itself), before and after."""

    path: str
    before: Any
    after: Any


def equal(before: Any, after: Any) -> bool:
    """Return whether two values compare as equal; False if they cannot be compared."""
    try:
        return bool(before == after)
    except USER_CODE_ERRORS:  # their own comparison can raise anything
        return False


def first_difference(before: Any, after: Any, *, loose: bool = False, path: str = "") -> RoundTripDifference | None:
    """Return where a value has changed, None if nowhere; with `loose`, a list may come back for a tuple."""
    if equal(before, after):
        return None
    parts = _common_parts(before, after, loose)
    if parts is None:
        return RoundTripDifference(path, before, after)
    found = (first_difference(one, other, loose=loose, path=path + step) for step, one, other in parts)
    return next((difference for difference in found if difference is not None), None)


def unwritable_part(value: Any, path: str = "") -> tuple[str, BaseException] | None:
    """Return the innermost part of a value without a JSON form, and why; None if all of it has one."""
    try:
        to_json(value)
    except RecursionError as error:
        return path, error
    except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
        inner = (unwritable_part(part, path + step) for step, part in _parts(value))
        return next((found for found in inner if found is not None), (path, error))
    return None


def is_too_deep(payload: bytes) -> bool:
    """Return whether JSON is nested deeper than MAX_DEPTH."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", payload).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def shown(value: Any) -> str:
    """Return a value as a short text for an error message; its type if it cannot be printed."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _common_parts(before: Any, after: Any, loose: bool) -> Iterable[tuple[str, Any, Any]] | None:
    """Return the parts of two unequal values if they have the same ones; None if they differ themselves."""
    if loose and isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        pass
    elif type(before) is not type(after):
        return None
    if isinstance(before, Decimal):
        # NaN is not equal to itself.
        return () if before.is_nan() and str(before) == str(after) else None
    if isinstance(before, datetime):
        # In the hour that a clock repeats, the same instant in two time zones is unequal in Python.
        aware = before.tzinfo is not None and after.tzinfo is not None
        return () if aware and before.astimezone(UTC) == after.astimezone(UTC) else None
    if isinstance(before, Mapping) and before.keys() != after.keys():
        return None
    ours, theirs = list(_parts(before)), list(_parts(after))
    if not ours or [step for step, _ in ours] != [step for step, _ in theirs]:
        return None
    return [(step, one, other) for (step, one), (_, other) in zip(ours, theirs, strict=True)]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with the path step to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{shown(key)}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield f"[{shown(item)}]", item
    else:
        for name in _field_names(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(kind: type[Any]) -> Iterable[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.compare]
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    if hasattr(kind, "__pydantic_fields__"):
        return [*kind.__pydantic_fields__, "__pydantic_extra__", "__pydantic_private__"]
    return getattr(kind, "__struct_fields__", ())
