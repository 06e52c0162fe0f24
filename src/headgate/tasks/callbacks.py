"""Callbacks: who a task tells of the lives of its jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from headgate.errors import DeclarationError

AnyCallback = Callable[..., Any]


class CallbackKind(StrEnum):
    """What a task can tell of a job; each is the name of the method that a handler has for it."""

    STARTED = "on_started"
    COMPLETED = "on_completed"
    ERROR = "on_error"
    RETRY = "on_retry"


TAKES = {CallbackKind.STARTED: 1, CallbackKind.COMPLETED: 2, CallbackKind.ERROR: 2, CallbackKind.RETRY: 4}
"""How many arguments the callback of each moment is given."""


class Callbacks:
    """The callbacks of one task: functions, and methods of its handler."""

    __slots__ = ("_functions", "_methods", "exist")

    def __init__(self, handler: type[Any] | None = None, silent: type[Any] | None = None) -> None:
        """With a handler: those of its methods that are not `silent`'s own."""
        self._functions: dict[CallbackKind, list[AnyCallback]] = {}
        self._methods = frozenset(
            moment
            for moment in CallbackKind
            if handler is not None and getattr(handler, moment, None) is not getattr(silent, moment, None)
        )
        # Looked at for every attempt of every task, so it is no question but an attribute.
        self.exist: bool = bool(self._methods)

    def wants(self, moment: CallbackKind) -> bool:
        """Return whether anybody is to be told."""
        return moment in self._methods or moment in self._functions

    def add(self, moment: CallbackKind, callback: AnyCallback, where: str) -> None:
        """Tell this one, too. Raises DeclarationError for what cannot be called with what it would be told."""
        if not callable(callback) or hasattr(callback, "enqueue"):
            raise DeclarationError(f"@{moment} of {where} needs a function, not {callback!r}")
        misfit = _misfit(callback, TAKES[moment])
        if misfit is not None:
            raise DeclarationError(f"@{moment} of {where} gets {_EXPECTED[moment]}: {misfit}")
        self._functions.setdefault(moment, []).append(callback)
        self.exist = True

    def to_tell(self, moment: CallbackKind, handler: Any | None) -> list[AnyCallback]:
        """Whom to tell; `handler` is the instance whose method it is, if the task is a handler."""
        callbacks = list(self._functions.get(moment, ()))
        if handler is not None and moment in self._methods:
            callbacks.insert(0, getattr(handler, moment))
        return callbacks


_EXPECTED = {
    CallbackKind.STARTED: "(job)",
    CallbackKind.COMPLETED: "(job, result)",
    CallbackKind.ERROR: "(job, error)",
    CallbackKind.RETRY: "(job, error, attempt, delay)",
}


def _misfit(callback: AnyCallback, count: int) -> str | None:
    """Why it cannot be called with so many arguments; None if it can, as far as can be told."""
    try:
        inspect.signature(callback).bind(*range(count))
    except TypeError as error:
        return str(error)
    except ValueError:
        # Some built-ins have no signature: what is wrong with them is seen at the call.
        return None
    return None
