"""Remote errors: exceptions of a child process, rebuilt in its node for retry filters and callbacks."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any

from headgate.engine.child_messages import ErrorClass, PlainValue
from headgate.jobs.annotation import plain
from headgate.jobs.job import storable, truncated_error

LONGEST_ATTRIBUTE = 2048
"""Characters of an attribute of an error that the node gets."""


def describe_class(error: BaseException, depth: int = 5, sent: set[int] | None = None) -> ErrorClass:
    """Return what crosses to the node of an error, and of its members and what caused it, as deep as `depth`."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    sent = set() if sent is None else sent
    if isinstance(error, BaseExceptionGroup):
        # It is sent as the cause of no other one: members that were raised again while it was handled lead back to it.
        sent.add(id(error))
    # Filters check each member of a group; a group that is too large or too deep is sent in part.
    members = error.exceptions[:100] if isinstance(error, BaseExceptionGroup) and depth > 0 else ()
    causes = (error.__cause__, error.__context__ if error.__cause__ is None else None) if depth > 0 else ()
    return ErrorClass(
        tuple(f"{kind.__module__}:{kind.__qualname__}".replace("__mp_main__:", "__main__:") for kind in kinds),
        truncated_error(error).message,
        tuple(describe_class(member, depth - 1, sent) for member in members),
        _attributes(error),
        *(None if cause is None or id(cause) in sent else describe_class(cause, depth - 1, sent) for cause in causes),
    )


def _attributes(error: BaseException) -> dict[str, PlainValue]:
    """Return the attributes of the error that cross to the node, those of subclasses as the plain values they hold."""
    found = dict(getattr(error, "__dict__", {}))
    if isinstance(error, OSError):
        found["errno"] = error.errno
    return {name: plain(value) for name, value in found.items() if _crosses(name) and _crosses(value)}


def _crosses(value: object) -> bool:
    # A proxy, as those of Flask and Django, runs code of its own if its class is asked for.
    with contextlib.suppress(Exception):
        match value:
            case None | bool():
                return True
            case float():
                return math.isfinite(value)
            case int():
                return abs(value) < 2**63
            case str():
                return len(value) <= LONGEST_ATTRIBUTE and storable(value) == value
    return False


def rebuild_error(kind: ErrorClass) -> BaseException:
    """Return an exception with the same text that is an instance of every class of `kind` that this process has.

    Its class is a subclass made for it, whose constructor is not called: its arguments were not sent. It has its text,
    its attributes that are plain values, what caused it and, for a group, its members. Classes that this process has
    not imported cannot be matched here either.
    """
    classes = [found for found in map(_class_here, kind.names) if found is not None]
    # A base class of one that is in the list already adds nothing.
    bases = [each for i, each in enumerate(classes) if not any(issubclass(nearer, each) for nearer in classes[:i])]
    module, _, name = (kind.names[0] if kind.names else "builtins:Exception").partition(":")
    own = {"__str__": lambda _: kind.message, "__module__": module}
    # Several bases may conflict.
    for attempt in (tuple(bases), tuple(bases[:1]), (Exception,)):
        if attempt:
            with contextlib.suppress(TypeError):
                return _instance(type(name.rpartition(".")[2], attempt, own), kind)
    return Exception(kind.message)


def _instance(made: type, kind: ErrorClass) -> BaseException:
    """Return an instance made without the code of its class; raises TypeError if that is impossible."""
    built_in: Any = made
    while built_in.__module__ != "builtins":
        # The base that defines the memory layout, which need not be the first.
        built_in = built_in.__base__
    if issubclass(built_in, BaseExceptionGroup):
        members = [rebuild_error(member) for member in kind.members] or [Exception(kind.message)]
        error: BaseException = built_in.__new__(made, kind.message, members)
    else:
        error = built_in.__new__(made)
        error.args = (kind.message,)
    for name, value in kind.attributes.items():
        # The class may have a property of that name.
        with contextlib.suppress(Exception):
            object.__setattr__(error, name, value)
    if kind.cause is not None:
        error.__cause__ = rebuild_error(kind.cause)
    error.__context__ = None if kind.context is None else rebuild_error(kind.context)
    return error


def _class_here(kind: str) -> type[BaseException] | None:
    module, _, name = kind.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
