"""Callbacks of a task: functions called when its jobs start, complete, fail or retry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from headgate.errors import DeclarationError
from headgate.tasks.modules import is_run_again

AnyCallback = Callable[..., Any]


class CallbackKind(StrEnum):
    """The events of a job with callbacks; each is the name of the handler's method for it."""

    STARTED = "on_started"
    COMPLETED = "on_completed"
    ERROR = "on_error"
    RETRY = "on_retry"


TAKES = {
    CallbackKind.STARTED: ("job",),
    CallbackKind.COMPLETED: ("job", "result"),
    CallbackKind.ERROR: ("job", "error"),
    CallbackKind.RETRY: ("job", "error", "attempt", "delay"),
}
"""The arguments of the callback of each event."""


class Callbacks:
    """The callbacks of one task: functions, and methods of its handler."""

    __slots__ = ("_functions", "_methods", "exist")

    def __init__(self, handler: type[Any] | None, base: type[Any]) -> None:
        """Take the handler's methods that override those of the base class `base`."""
        self._functions: dict[CallbackKind, list[AnyCallback]] = {}
        self._methods = frozenset(
            event
            for event in CallbackKind
            if handler is not None and getattr(handler, event, None) is not getattr(base, event, None)
        )
        # An attribute, not a property: it is read for every attempt of every task.
        self.exist: bool = bool(self._methods)

    def wants(self, event: CallbackKind) -> bool:
        """Return whether there is a callback for this event."""
        return event in self._methods or event in self._functions

    def add(self, event: CallbackKind, callback: AnyCallback, where: str) -> None:
        """Add a callback. Raises DeclarationError if it cannot be called with the event's arguments."""
        require_function(callback, f"@{event} of {where}", TAKES[event])
        earlier = self._functions.get(event, [])
        self._functions[event] = [*(each for each in earlier if not is_run_again(callback, each)), callback]
        self.exist = True

    def callbacks_for(self, event: CallbackKind, handler: Any | None) -> list[AnyCallback]:
        """Return the callbacks of an event; `handler` is the instance with the method, if the task is a handler."""
        callbacks = list(self._functions.get(event, ()))
        if handler is not None and event in self._methods:
            callbacks.insert(0, getattr(handler, event))
        return callbacks


def require_function(function: AnyCallback, where: str, takes: Sequence[str]) -> None:
    """Raise DeclarationError unless it is a function that can be called with so many arguments."""
    if not callable(function) or hasattr(function, "enqueue"):
        raise DeclarationError(f"{where} needs a function, not {function!r}")
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        raise DeclarationError(f"{where}: {name_of(function)!r} gets ({', '.join(takes)}): {error}") from None
    except ValueError:
        # Some built-ins have no signature: an error then appears at the call.
        return


def name_of(function: AnyCallback) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__name__", function))
