"""The log hook: listens to log records without a handler, so the program's own logging setup keeps working."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

Listener = Callable[[logging.LogRecord], None]

_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()
_call_handlers = logging.Logger.callHandlers
_is_installed = False


def add_listener(listener: Listener) -> None:
    """Call `listener` with every record that ordinary logging passes, after its handlers, until `remove_listener`.

    A handler at the root would be simpler, but with it logging counts as configured: `basicConfig()` does nothing, and
    records without another handler are no longer printed. Instead, one of Logger's methods is replaced while there are
    listeners.
    """
    global _listeners, _call_handlers, _is_installed
    with _lock:
        if not _is_installed:
            _is_installed = True
            _call_handlers = logging.Logger.callHandlers
            logging.Logger.callHandlers = _call_handlers_and_listeners  # type: ignore[assignment,method-assign]
        _listeners = (*_listeners, listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling `listener`; without effect if it was not added."""
    global _listeners, _is_installed
    with _lock:
        _listeners = tuple(each for each in _listeners if each != listener)
        # If another program has replaced the method since, its method calls ours, which must stay.
        if not _listeners and logging.Logger.callHandlers is _call_handlers_and_listeners:
            _is_installed = False
            logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign]


def _call_handlers_and_listeners(logger: logging.Logger, record: logging.LogRecord) -> None:
    _call_handlers(logger, record)
    for listener in _listeners:
        listener(record)
