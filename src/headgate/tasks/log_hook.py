"""The log hook: hears what a program logs without being a handler, so the program sets its logging up, or does not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

Hears = Callable[[logging.LogRecord], None]

_changing = threading.Lock()
_all: tuple[Hears, ...] = ()
_call_handlers = logging.Logger.callHandlers
_is_placed = False


def listen(hears: Hears) -> None:
    """Tell `hears` of every record that ordinary logging lets through, after its handlers, until `unlisten`.

    A handler at the root would be simpler, but with one there logging takes itself for configured: `basicConfig()` does
    nothing, and what no handler takes is no longer printed. One of Logger's methods is stood in for instead, as
    long as anybody listens.
    """
    global _all, _call_handlers, _is_placed
    with _changing:
        if not _is_placed:
            _is_placed = True
            _call_handlers = logging.Logger.callHandlers
            logging.Logger.callHandlers = _call_and_tell  # type: ignore[assignment,method-assign]
        _all = (*_all, hears)


def unlisten(hears: Hears) -> None:
    """Tell it no more; without effect for one that is told of nothing."""
    global _all, _is_placed
    with _changing:
        _all = tuple(each for each in _all if each != hears)
        # Where somebody else stands in for the method by now, theirs calls ours, which has to stay.
        if not _all and logging.Logger.callHandlers is _call_and_tell:
            _is_placed = False
            logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign]


def _call_and_tell(logger: logging.Logger, record: logging.LogRecord) -> None:
    _call_handlers(logger, record)
    for hears in _all:
        hears(record)
