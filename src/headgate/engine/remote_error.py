"""Remote errors: rebuilds exceptions of a child process, so that filters by class and callbacks can match them."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from headgate.engine.child_messages import ErrorClass


def rebuild_error(kind: ErrorClass) -> BaseException:
    """Return an exception with the same text that is an instance of every class of `kind` that this process has.

    Its class is a subclass made for it, whose constructor is not called: its arguments were not sent. It has only its
    text and, for a group, its members. Classes that this process has not imported cannot be matched here either.
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
        group: BaseException = built_in.__new__(made, kind.message, members)
        return group
    error: BaseException = built_in.__new__(made)
    error.args = (kind.message,)
    return error


def _class_here(kind: str) -> type[BaseException] | None:
    module, _, name = kind.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
