"""Fields: what the types of arguments are made of."""

from __future__ import annotations

import dataclasses
from typing import Any, is_typeddict

import msgspec


def fields_of(kind: Any) -> frozenset[str]:
    """The names of its fields: of a dataclass, a Struct, a pydantic model or a TypedDict; none for other types."""
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return frozenset(kind.__struct_fields__)
    if is_typeddict(kind):
        return frozenset(kind.__annotations__)
    return frozenset(getattr(kind, "model_fields", ()))
