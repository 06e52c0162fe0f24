"""Values as JSON: encoding, decoding to a type, the types without a JSON form, and what a round trip changes."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from headgate.errors import USER_CODE_ERRORS
from headgate.jobs.annotation import plain

MAX_DEPTH = 100
"""How deep a payload may be nested; a deeper one could reach Python's recursion limit, here or in another process."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


# Pydantic models have their own JSON methods. Nothing here imports pydantic: if an annotation is a model, the program
# has imported it.


def _encode_other(value: Any) -> Any:
    """Encode a value that msgspec does not encode by itself."""
    if is_model(type(value)):
        # `round_trip` leaves out computed fields; a value that does not match its field is an error.
        return msgspec.Raw(value.model_dump_json(round_trip=True, by_alias=True, warnings="error").encode())
    # Of a subclass of a plain type, an equal value of that type comes back.
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return timedelta.__pos__(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return plain(value)
    word = "key" if isinstance(value, bool | tuple | frozenset | None) else "value"  # JSON has these as values
    raise TypeError(f"a {word} of the type {type(value).__qualname__} has no JSON form")


def _decode_other(kind: type[Any], data: Any) -> Any:
    """Decode a value that msgspec does not decode by itself."""
    if kind is object:
        return data
    if not is_model(kind):
        raise TypeError(f"the type {kind.__qualname__} has no JSON form")
    try:
        # Through JSON again, so that a strict model accepts a date.
        return kind.model_validate_json(to_json(data))
    except ValueError as error:
        raise ValueError(_one_line_error(error)) from error


to_json: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_encode_other).encode
"""Return a value as JSON. Raises TypeError, ValueError, RecursionError or anything that a model's code raises."""


to_sorted_json: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_encode_other, order="deterministic").encode
"""As `to_json`, with sets and dicts in an order that is the same in all processes."""


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON to this type. Raises TypeError, ValueError or NameError if it has no JSON form."""
    made = msgspec.json.Decoder(kind, dec_hook=_decode_other)
    unknown = _unknown_in(msgspec.inspect.type_info(kind), set())
    if unknown is not None:
        raise TypeError(f"the type {getattr(unknown, '__qualname__', unknown)} has no JSON form")
    return made


def is_model(kind: Any) -> bool:
    """Return whether this type is a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _unknown_in(described: Any, seen: set[int]) -> Any:
    """Return the first type in this one that neither msgspec nor pydantic can read."""
    if id(described) in seen:
        return None
    seen.add(id(described))
    if isinstance(described, msgspec.inspect.CustomType):
        kind = described.cls
        return None if kind is object or is_model(kind) else kind
    if isinstance(described, (list, tuple)):
        parts: Any = described
    elif isinstance(described, (msgspec.inspect.Type, msgspec.inspect.Field)):
        parts = (getattr(described, name) for name in described.__struct_fields__)
    else:
        return None
    return next((unknown for part in parts if (unknown := _unknown_in(part, seen)) is not None), None)


def _one_line_error(error: ValueError) -> str:
    """Return a model's validation errors in one line, with the path of each."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    return "; ".join(
        f"{'.'.join(str(part) for part in one['loc']) or 'the model'}: {one['msg']}"
        for one in errors(include_url=False, include_context=False, include_input=False)
    )


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


def is_too_deep(payload: bytes, most: int = MAX_DEPTH) -> bool:
    """Return whether JSON is nested deeper than so many levels."""
    if payload.count(b"[") + payload.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", payload).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
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
    elif type(before) is not type(after) and not (isinstance(before, datetime) and isinstance(after, datetime)):
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
