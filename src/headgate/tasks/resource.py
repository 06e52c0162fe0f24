"""Resources: arguments of handlers beside the payload, such as a database session; opened and closed for them."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin

from headgate.errors import DeclarationError
from headgate.tasks.annotations import annotations_of
from headgate.tasks.modules import is_run_again

INJECTED: Any = object()
"""A default for the parameters that resources fill: `session: Session = INJECTED`.

It changes nothing at run time. With it, type checkers do not require the argument where the task is enqueued.
"""

Opened = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]

_YIELDS = {
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Iterable,
}


class Scope(StrEnum):
    """How long a resource stays open."""

    NODE = "node"
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """An object that handlers request by its type, `kind`; `needs` are the resources that it takes itself."""

    name: str
    kind: Any
    scope: Scope
    needs: dict[str, Resource]
    open: Callable[..., Opened]

    def requires(self, other: Resource | None) -> bool:
        """Whether it is the other one, or takes it, also through others."""
        found = [self]
        for each in found:
            found += [need for need in each.needs.values() if need not in found]
        return other in found


def declare_resource(function: Callable[..., Any], scope: str, known: Mapping[Any, Resource]) -> Resource:
    """Return the resource that a generator function makes. Raises DeclarationError if it can never be injected."""
    name = str(getattr(function, "__name__", function))
    where = f"resource {name!r}"
    if scope not in tuple(Scope):
        raise DeclarationError(f'{where}: scope={scope!r} must be "node" or "attempt"')
    hints = annotations_of(function, where)
    kind = _yielded(function, hints.get("return"), where)
    earlier = known.get(kind)
    if earlier is not None and not is_run_again(function, earlier.open):
        raise DeclarationError(
            f"{where} yields {_named(kind)}, as resource {earlier.name!r} does; handlers ask by type, so "
            'use different ones: Annotated[…, "replica"], a NewType or a subclass'
        )
    needs = _needs(function, hints, known, where)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in needs:
            raise DeclarationError(
                f"{where} takes {parameter.name!r}, which is not a resource; a resource takes only resources, by type, "
                "that were declared before it"
            )
        if needs[parameter.name].requires(earlier):
            raise DeclarationError(f"{where} takes {parameter.name!r}, which takes it; let one do without the other")
    pairs: list[tuple[str, str, str, str]] = [(name, scope, need.name, need.scope) for need in needs.values()]
    pairs += [(user.name, user.scope, name, scope) for user in known.values() if earlier in user.needs.values()]
    for user, user_scope, need, need_scope in pairs:
        if user_scope == Scope.NODE and need_scope == Scope.ATTEMPT:
            raise DeclarationError(
                f"resource {user!r} is opened once for the node and cannot take {need!r}, which is another one for "
                'each attempt; give it scope="attempt"'
            )
    is_async = inspect.isasyncgenfunction(function)
    make = contextlib.asynccontextmanager(function) if is_async else contextlib.contextmanager(function)
    return Resource(name, kind, Scope(scope), needs, make)


def needs_of(function: Callable[..., Any], known: Mapping[Any, Resource], where: str) -> dict[str, Resource]:
    """Return the parameters of a task that resources fill, by name."""
    return _needs(function, annotations_of(function, where), known, where) if known else {}


def _needs(
    function: Callable[..., Any], hints: Mapping[str, Any], known: Mapping[Any, Resource], where: str
) -> dict[str, Resource]:
    found: dict[str, Resource] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        with contextlib.suppress(TypeError):  # an unhashable annotation is not a resource's
            if (resource := known.get(hints.get(name))) is not None:
                found[name] = resource
        if name in found and parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DeclarationError(
                f"{where}: resource {name!r} is passed by name, so put it after the `/`, and write no `*` before it"
            )
    return found


def _yielded(function: Callable[..., Any], returned: Any, where: str) -> Any:
    if hasattr(function, "__wrapped__") and not inspect.isgeneratorfunction(function):
        raise DeclarationError(f"{where} is a context manager already; put @app.resource on the generator itself")
    if not inspect.isasyncgenfunction(function) and not inspect.isgeneratorfunction(function):
        raise DeclarationError(
            f"{where} must be a generator that yields once what handlers get: "
            f"async def {getattr(function, '__name__', 'f')}() -> AsyncIterator[Session]: …"
        )
    arguments = get_args(returned)
    if get_origin(returned) not in _YIELDS or not arguments:
        raise DeclarationError(
            f"{where} does not say what it yields, and handlers ask for it by type; annotate it as -> AsyncIterator[…]"
        )
    kind = arguments[0]
    try:
        hash(kind)
    except TypeError:
        raise DeclarationError(f"{where} yields {_named(kind)}, which is not hashable, so not found") from None
    if kind in (Any, object, type(None)):
        raise DeclarationError(
            f"{where} yields {_named(kind)}, which is not a specific type; name the type that handlers ask for"
        )
    return kind


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
