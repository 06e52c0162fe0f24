"""The fields of arguments, read from their annotations: the names that a key template may use."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

UNKNOWN: Any = Any
"""The type of an argument without a usable annotation: it may have any field."""

_ABSENT = object()
_QUALIFIERS = (Final, ClassVar, Required, NotRequired)
_METHODS = (
    staticmethod,
    classmethod,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)
_KNOWN_MODULES = frozenset({"builtins", "datetime", "uuid", "decimal", "fractions", "pathlib", "ipaddress"})
"""Modules whose classes have no attributes but those of the class."""


class ArgumentFields:
    """The types of a function's arguments, by name; the type of an absent argument is unknown."""

    def __init__(self, kinds: Mapping[str, Any] | None = None) -> None:
        self._kinds: Mapping[str, Any] = kinds or {}

    def __contains__(self, name: object) -> bool:
        """Return whether a template may name this field directly, because the function has only one argument."""
        return name in self.of_only_argument

    @cached_property
    def of_only_argument(self) -> tuple[str, ...]:
        """The fields of the only argument; empty if there are several, or if its type has no known fields."""
        if len(self._kinds) != 1:
            return ()
        (kind,) = self._kinds.values()
        return tuple(dict.fromkeys(name for each in _alternatives(kind) for name in fields_of(each)))

    def problem(self, path: Sequence[str]) -> str | None:
        """Return what is wrong with an argument's name and the fields after it, with the nearest name; None if nothing.

        A type with unknown fields, such as Any or dict, may have any field.
        """
        kinds = [self._kinds.get(path[0], UNKNOWN)]
        for depth, name in enumerate(path[1:], 1):
            found: list[Any] = []
            missing: dict[str, Any] = {}
            for kind in [each for known in kinds for each in _alternatives(known)]:
                try:
                    found.append(_field(kind, name))
                except _NoField as problem:
                    if problem.is_method:
                        return (
                            f"{name!r} is a method of {_type_name(kind)}, and its value would be another for each job"
                        )
                    missing[_type_name(kind)] = kind
            # In a union, one alternative with the field is enough.
            if not found:
                names = sorted({field for kind in missing.values() for field in fields_of(kind)})
                return _missing_field_message(" | ".join(missing), name, names, path[:depth])
            kinds = found
        unordered = [_type_name(kind) for known in kinds for kind in _alternatives(known) if _is_unordered(kind)]
        if unordered:
            return (
                f"it is a {unordered[0]}, which has no order: equal ones would have different keys; name one of its "
                "fields, or compute a text by a function, such as "
                f'key=lambda {path[0]}: ",".join(sorted({".".join(path)}))'
            )
        return None


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass, Struct, attrs class, pydantic model, TypedDict or NamedTuple, in order."""
    kind = get_origin(kind) or kind
    return tuple(_field_types(kind) or ()) if isinstance(kind, type) or is_typeddict(kind) else ()


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that is most similar to `name`; None if none is similar."""
    return next(iter(get_close_matches(name, list(names), n=1)), None)


def read_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's arguments; all are UNKNOWN if the annotations cannot be resolved."""
    return _typed(function, inspect.signature(function).parameters)


def _is_unordered(kind: Any) -> bool:
    """Return whether the text of a value of this type depends on more than the value: sets and mappings."""
    kind = get_origin(kind) or kind
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, (Set, Mapping)))


class _NoField(Exception):
    def __init__(self, *, is_method: bool = False) -> None:
        self.is_method = is_method


def _field(kind: Any, name: str) -> Any:
    """Return the type of a field, or UNKNOWN without an annotation. Raises _NoField."""
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return args[1] if len(args) == 2 else UNKNOWN
    kind = origin or kind
    if is_typeddict(kind):
        known = _field_types(kind) or {}
        if name not in known:
            raise _NoField
        return known[name]
    if not isinstance(kind, type) or kind is object or issubclass(kind, Mapping):
        return UNKNOWN
    known = _field_types(kind) or {}
    if name in known:
        return known[name]
    if not _is_closed(kind):
        return UNKNOWN
    attribute = inspect.getattr_static(kind, name, _ABSENT)
    if attribute is _ABSENT:
        raise _NoField
    if isinstance(attribute, _METHODS):
        raise _NoField(is_method=True)
    return UNKNOWN


def _is_closed(kind: type) -> bool:
    """Return whether instances have no attributes but their fields and those of the class."""
    config = getattr(kind, "model_config", None)
    if isinstance(config, Mapping) and hasattr(kind, "model_fields"):
        return config.get("extra") != "allow"
    if hasattr(kind, "__getattr__"):
        return False
    if issubclass(kind, Enum):
        # Members may get attributes in their `__init__`.
        own = [base for base in kind.__mro__ if base.__module__ not in ("enum", "builtins")]
        return not any("__init__" in vars(base) or "__new__" in vars(base) for base in own)
    return _field_types(kind) is not None or kind.__module__ in _KNOWN_MODULES


def _field_types(kind: Any) -> Mapping[str, Any] | None:
    """Return the types of the fields by name; None for a class without declared fields."""
    if dataclasses.is_dataclass(kind):
        return _typed(kind, [field.name for field in dataclasses.fields(kind)])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _typed(kind, kind.__struct_fields__)
    if is_typeddict(kind):
        return _typed(kind, kind.__annotations__)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _typed(kind, kind._fields)
    models = getattr(kind, "model_fields", None)
    if isinstance(models, Mapping):
        return {name: getattr(field, "annotation", UNKNOWN) for name, field in models.items()}
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else _typed(kind, [attribute.name for attribute in attributes])


def _typed(kind: Any, names: Iterable[str]) -> dict[str, Any]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # resolving the names in annotations can raise anything: one may not be defined yet
        hints = {}
    return {name: hints.get(name, UNKNOWN) for name in names}


def _alternatives(kind: Any) -> list[Any]:
    """Return the types a value may have, except None: those of a union, without Annotated, NewType and the like."""
    origin = get_origin(kind)
    if origin is Annotated or origin in _QUALIFIERS:
        return _alternatives(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return [each for part in get_args(kind) if part is not type(None) for each in _alternatives(part)]
    if origin is Literal:
        return [type(value) for value in get_args(kind) if value is not None]
    if hasattr(kind, "__supertype__"):
        return _alternatives(kind.__supertype__)
    if isinstance(kind, TypeVar):
        parts = kind.__constraints__ or ((kind.__bound__,) if kind.__bound__ is not None else (UNKNOWN,))
        return [each for part in parts for each in _alternatives(part)]
    if type(kind).__name__ == "TypeAliasType":
        return _alternatives(kind.__value__)
    return [kind]


def _missing_field_message(owner: str, name: str, names: Sequence[str], before: Sequence[str]) -> str:
    has = f"it has: {', '.join(names)}" if names else "it has no fields"
    close = nearest(name, names)
    instead = "" if close is None else f"; write {{{'.'.join([*before, close])}}}"
    return f"{owner} has no field {name!r}; {has}{instead}"


def _type_name(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))
