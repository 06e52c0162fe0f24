"""Keys: the bucket that a job uses, computed from its arguments at enqueue."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any, NoReturn

import msgspec

from headgate.arguments import is_utf8
from headgate.errors import DeclarationError
from headgate.limits.argument_fields import ArgumentFields, fields_of, nearest

MAX_KEY = 256
"""The longest key; a longer one is replaced by its SHA-256."""

ONE_FOR_ALL = ""
"""The key of a limit without `key`: one bucket for all jobs."""

SHARED = "global"
"""The key of a job that lacks the header that its limit counts by, or any key with `on_missing_key="shared"`."""


@dataclass(frozen=True, slots=True)
class Header:
    """A key taken from the job's headers; `header()` makes it."""

    name: str


def header(name: str = "tenant") -> Header:
    """Count by a job header (default `tenant`), set with `task.using(headers=…)`; a job without it uses `"global"`."""
    if not isinstance(name, str) or not name:
        raise DeclarationError(f'header({name!r:.80}) needs the name of a header; write header("tenant")')
    if "{" in name or "}" in name:
        bare = name.strip("{} ") or "tenant"
        raise DeclarationError(f'header({name!r:.80}) names one header and is not a template; write header("{bare}")')
    return Header(name)


BETWEEN_LEVELS = "\x1f"
"""Stands between the two levels of a key. Statements know it in stored buckets, so it is in no level."""

LONGEST_LEVEL = 120
"""The longest level of a key of two; a longer one is replaced by its SHA-256."""

_NOT_IN_LEVELS = re.compile(r'["\\\x00-\x1f]')

Arguments = Mapping[str, object]
Headers = Mapping[str, str]
Compute = Callable[[Arguments, Headers], object]

UNTYPED = ArgumentFields()
"""The arguments of a function without known types."""


def compile_key(key: object, parameters: Sequence[str], where: str, fields: ArgumentFields = UNTYPED) -> Compute:
    """Return a function from a job's arguments and headers to its key, or to None if the key is missing.

    Raises DeclarationError if the key names an argument that is not in `parameters`, or a field that the argument's
    annotation does not have, and for a constant that spells either; `where` names the owner of the key in messages. If
    there is only one argument, a template may name its `fields` directly.
    """
    match key:
        case None:
            return lambda _arguments, _headers: ONE_FOR_ALL
        case Header(name):
            return lambda _arguments, headers: headers.get(name) or SHARED
        case str():
            return _compile_template(key, parameters, where, fields)
        case (_,) | (_, _) if isinstance(key, tuple):
            return _compile_levels(key, parameters, where, fields)
        case _ if key is header:
            raise DeclarationError(f'{where}: key=header is not called; write header("tenant")')
        case _ if hasattr(key, "enqueue"):
            raise DeclarationError(f"{where}: key={key!r} is a task; write a function of the arguments")
        case _ if callable(key):
            return _compile_callable(key, parameters, where)
        case _:
            raise DeclarationError(f"key={key!r} of {where} is not a template, a callable, header(…) or None")


def is_constant(template: str) -> bool:
    """Return whether a template names no argument."""
    try:
        return not any(field is not None for _, field, _, _ in Formatter().parse(template))
    except ValueError:
        return False


def reads_arguments(key: object) -> bool:
    """Return whether a key, a cost or an owner may depend on the arguments of a job."""
    match key:
        case None | int() | Header():
            return False
        case str():
            return not is_constant(key)
        case _:
            return True


def named_arguments(text: str, parameters: Sequence[str], fields: ArgumentFields = UNTYPED) -> list[str]:
    """Return the arguments and fields that a text names in braces, as a template does."""
    try:
        named = [field for _, field, _, _ in Formatter().parse(text) if field]
    except ValueError:
        return []
    return [field for field in named if (first := field.split(".")[0]) in parameters or first in fields]


def bucket_key(value: object, longest: int = MAX_KEY) -> str:
    """Return the computed key as stored: text, "" if it is empty, or its SHA-256 if it is long or cannot be stored."""
    if value is None:
        return ""
    text = value if type(value) is str else key_text(value)
    if len(text) <= longest and "\x00" not in text and (text.isascii() or is_utf8(text)):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def key_text(value: object) -> str:
    """Return the text of a value in a key: equal values have equal texts, in every process.

    `str()` of a set follows the hash seed of its process, and `str()` of a dict the order in which it was filled, also
    inside of other values. These, and records without a `__str__` of their own, are written as JSON, sorted. Raises
    TypeError for what has no JSON form.
    """
    kind: Any = type(value)
    # What `__str__` returns may be of a subclass, too.
    return _to_sorted_json(value).decode() if _is_written_as_json(kind) else str.__str__(str(value))


@lru_cache(1000)
def _is_written_as_json(kind: Any) -> bool:
    return kind.__str__ is object.__str__ and (issubclass(kind, _CONTAINERS) or bool(fields_of(kind)))


def _plain(value: object) -> object:
    """Return a value that msgspec does not encode by itself as one that it does."""
    if isinstance(value, Set):
        return frozenset(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(type(value), "model_dump"):
        return value.model_dump()  # type: ignore[attr-defined]  # a pydantic model
    return str(value)


_CONTAINERS = (Set, Mapping, list, tuple)
_to_sorted_json = msgspec.json.Encoder(order="sorted", enc_hook=_plain).encode


def levels_of(key: str) -> tuple[str, ...]:
    """Return the levels of a computed key: one or two."""
    return tuple(key.split(BETWEEN_LEVELS, 1))


def shown_key(key: str) -> str:
    """Return a computed key for people: two levels as `acme / ann`."""
    return " / ".join(filter(None, levels_of(key)))


def shown_template(key: object) -> str:
    """Return a key as it is declared, for people: a template as it is, a function by its name."""
    if isinstance(key, str):
        return key
    if isinstance(key, Header):
        return f'header("{key.name}")'
    return getattr(key, "__qualname__", None) or type(key).__qualname__


def _compile_template(template: str, parameters: Sequence[str], where: str, fields: ArgumentFields) -> Compute:
    try:
        parts = [(literal, field) for literal, field, _, _ in Formatter().parse(template)]
        extras = [spec or conversion for _, field, spec, conversion in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise DeclarationError(f"key template {template!r} of {where} cannot be read: {error}") from None
    if any(extras):
        raise DeclarationError(f"key template {template!r} of {where} has a format or conversion; use plain fields")
    if not any(field is not None for _, field in parts):
        # A constant: one bucket of that name for all jobs.
        name = "".join(literal for literal, _ in parts)
        _require_no_argument(name, template, parameters, where, fields)
        return lambda _arguments, _headers: name
    paths = [
        (literal, None if field is None else _path(field, template, parameters, where, fields))
        for literal, field in parts
    ]
    if len(paths) == 1 and not paths[0][0] and paths[0][1] is not None and len(paths[0][1]) == 1:
        only = paths[0][1][0]
        return lambda arguments, _headers: arguments[only]

    def compute(arguments: Arguments, _headers: Headers) -> object:
        text: list[str] = []
        for literal, path in paths:
            text.append(literal)
            if path is not None:
                value = _resolve(arguments, path)
                if value is None:
                    return None
                text.append(key_text(value))
        return "".join(text)

    return compute


def _compile_levels(key: tuple[object, ...], parameters: Sequence[str], where: str, fields: ArgumentFields) -> Compute:
    levels = [compile_key(level, parameters, where, fields) for level in key if level is not None]

    def compute_only(arguments: Arguments, headers: Headers) -> object:
        only = bucket_key(levels[0](arguments, headers))
        return bucket_key(only, 0) if BETWEEN_LEVELS in only else only

    def compute_both(arguments: Arguments, headers: Headers) -> object:
        stored = [stored_level(level(arguments, headers)) for level in levels]
        # A second level of None is empty: all lanes of the first one are a group.
        return BETWEEN_LEVELS.join(stored if len(stored) > 1 else (*stored, ""))

    return compute_only if len(key) == 1 else compute_both


def stored_level(value: object) -> str:
    """Return a level of a key of two as it is stored; an empty one is the shared one."""
    text = bucket_key(value, LONGEST_LEVEL) or SHARED
    # In stored buckets these characters are escaped; statements find the end of a level without decoding it.
    return bucket_key(text, 0) if _NOT_IN_LEVELS.search(text) else text


def _path(field: str, template: str, parameters: Sequence[str], where: str, fields: ArgumentFields) -> list[str]:
    first, *rest = field.split(".")
    if first.isdigit():
        if int(first) >= len(parameters):
            raise DeclarationError(
                f"key template {template!r} of {where} names argument {first}, but there are only {len(parameters)}: "
                f"{', '.join(parameters)}"
            )
        first = parameters[int(first)]
    if first not in parameters and first in fields:
        rest.insert(0, first)
        (first,) = parameters
    if first not in parameters:
        _raise_unknown(first, rest, template, parameters, where, fields)
    if not all(part.isidentifier() for part in rest):
        raise DeclarationError(
            f"key template {template!r} of {where}: {field!r} is not a dotted path of names{_dotted(field)}"
        )
    path = [first, *rest]
    problem = fields.problem(path)
    if problem is not None:
        raise DeclarationError(f"key template {template!r} of {where} names {field!r}, but {problem}")
    return path


def _raise_unknown(
    first: str, rest: Sequence[str], template: str, parameters: Sequence[str], where: str, fields: ArgumentFields
) -> NoReturn:
    own = fields.of_only_argument
    close = nearest(first, [*parameters, *own])
    instead = _dotted(first) if close is None else f"; write {{{'.'.join([close, *rest])}}}"
    known = ", ".join(parameters) or "it has none"
    of_only = f", with the fields {', '.join(own)}" if own else ""
    raise DeclarationError(
        f"key template {template!r} of {where} names {first!r}, which is not among its arguments: {known}{of_only}"
        f"{instead}"
    )


def _dotted(field: str) -> str:
    """Return what to write instead of an index: `order[tenant]` is `order.tenant`."""
    found = re.fullmatch(r"(\w+(?:\.\w+)*)\[['\"]?([^\W\d]\w*)['\"]?\]", field)
    return "" if found is None else f"; write {{{found[1]}.{found[2]}}}"


def _require_no_argument(
    name: str, template: str, parameters: Sequence[str], where: str, fields: ArgumentFields
) -> None:
    """Raise DeclarationError for a constant that spells an argument or a field of one: its braces are missing."""
    first, *rest = name.split(".")
    is_argument = first in parameters and (not rest or fields.problem([first, *rest]) is None)
    is_field = len(parameters) == 1 and first in fields and fields.problem([*parameters, first, *rest]) is None
    if is_argument or is_field:
        raise DeclarationError(
            f"{where}: all jobs get the one key {template!r}, which also names an argument or its field; write "
            f'"{{{name}}}" to count by its value, or choose another constant'
        )


def _resolve(arguments: Arguments, path: Sequence[str]) -> object:
    value: object = arguments[path[0]]
    for name in path[1:]:
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def _compile_callable(key: Callable[..., object], parameters: Sequence[str], where: str) -> Compute:
    try:
        signature = dict(inspect.signature(key).parameters)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{where}: the parameters of its key callable cannot be read: {error}") from None
    signature = {
        name: parameter
        for name, parameter in signature.items()
        # Parameters of the key function with defaults need no argument: `lambda tenant, prefix="t": …`.
        if name in parameters or parameter.default is parameter.empty
    }
    unknown = [name for name in signature if name not in parameters]
    if unknown:
        raise DeclarationError(
            f"the key callable of {where} has unknown parameters: {', '.join(unknown)}; it may have: "
            f"{', '.join(parameters)}"
        )
    named = [name for name, parameter in signature.items() if parameter.kind is parameter.KEYWORD_ONLY]
    placed = [name for name in signature if name not in named]
    return lambda arguments, _headers: key(
        *(arguments[name] for name in placed), **{name: arguments[name] for name in named}
    )
