"""Views: records with the fields of others, as operators, programs and browsers get what is stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from headgate.clock import to_datetime

View = TypeVar("View")


def view_of(kind: type[View], record: object, /, **own: Any) -> View:
    """Return a view of a record: its fields of the same names, and those that are given.

    An instant in microseconds becomes a datetime where the view has one. Raises AttributeError for a field that neither
    has, even if it has a default.
    """
    for name, is_datetime in _fields(cast(Hashable, kind)).items():
        if name not in own:
            value = getattr(record, name)
            own[name] = to_datetime(value) if is_datetime and isinstance(value, int) else value
    return kind(**own)


@cache
def _fields(kind: Hashable) -> Mapping[str, bool]:
    """Return the fields of a dataclass or struct, each with whether it is a datetime, or None instead of one."""
    return {name: datetime in (hint, *get_args(hint)) for name, hint in get_type_hints(kind).items()}
