"""Chunked tasks: one call of the function handles several jobs, each with one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from headgate.arguments import parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.tasks.annotations import annotations_of

MAX_CHUNK = 1000
"""The most jobs that one call can handle."""

_LISTS: tuple[Any, ...] = (list, Sequence, Collection)


class Chunk(NamedTuple):
    """How many jobs one call handles at most, and how many seconds the first of them waits for others."""

    size: int
    wait: float


def chunk_of(size: object, wait: Duration, where: str) -> Chunk:
    """Return the declared chunk. Raises DeclarationError."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_CHUNK:
        raise DeclarationError(f"{where}: a chunk of size={size!r} must be a whole number from 1 to {MAX_CHUNK}")
    return Chunk(size, parse_seconds(wait, "wait", where))


def function_of_one(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return a stand-in with the signature of one job: its argument is an element of the list that the function takes.

    Raises DeclarationError unless the function takes one list.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise DeclarationError(
            f"{where} handles chunks, so its function takes one argument, the list of what its jobs were enqueued "
            f"with; it takes {len(parameters)}: put several values of a job into one dataclass"
        )
    name = parameters[0].name
    hints = annotations_of(function, where)
    kinds = {name: _element(hints.get(name, Any), name, where)}
    if "return" in hints:
        kinds["return"] = _result(hints["return"])

    def of_one(*_arguments: Any) -> None:
        raise AssertionError("only its signature is used")

    of_one.__name__, of_one.__doc__ = getattr(function, "__name__", name), function.__doc__
    one = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kinds[name])
    of_one.__signature__ = inspect.Signature([one])  # type: ignore[attr-defined]  # inspect reads it
    of_one.__annotations__ = kinds
    return of_one


def _element(kind: Any, name: str, where: str) -> Any:
    if kind is Any or kind in _LISTS:
        return Any
    if get_origin(kind) in _LISTS:
        return get_args(kind)[0]
    raise DeclarationError(
        f"{where} handles chunks, so {name} is the list of what its jobs were enqueued with; annotate it as a list: "
        f"`{name}: list[…]`"
    )


def _result(kind: Any) -> Any:
    """Return the type of one job's result: of the elements, without the exceptions that may stand for them."""
    # A call may return None for all its jobs.
    kind = _without(kind, NoneType)
    if get_origin(kind) not in (*_LISTS, tuple) or not get_args(kind):
        return Any
    return _without(get_args(kind)[0], BaseException)


def _without(kind: Any, left_out: type) -> Any:
    """Return a union without this type and its subclasses, Any if nothing is left; another type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    values = [each for each in get_args(kind) if not (isinstance(each, type) and issubclass(each, left_out))]
    return Union[tuple(values)] if values else Any  # noqa: UP007  # its parts are known only here
