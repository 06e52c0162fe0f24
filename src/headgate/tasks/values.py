"""Values as JSON: encoding, decoding to a type, and the types without a JSON form."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

# Pydantic models have their own JSON methods. Nothing here imports pydantic: if an annotation is a model, the program
# has imported it.


def _encode_other(value: Any) -> Any:
    """Encode a value that msgspec does not encode by itself."""
    if is_model(type(value)):
        # `round_trip` leaves out computed fields; a value that does not match its field is an error.
        return msgspec.Raw(value.model_dump_json(round_trip=True, by_alias=True, warnings="error").encode())
    for plain in (str, int, float):
        if isinstance(value, plain):
            # An equal value of the plain type comes back.
            return plain(value)
    raise TypeError(f"a value of the type {type(value).__qualname__} has no JSON form")


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
