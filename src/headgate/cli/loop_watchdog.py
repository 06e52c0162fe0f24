"""Log that a handler blocks the event loop of a worker, while it does: the loop itself can log that only afterwards.

Where systemd waits for signs of life (`WatchdogSec=`), it gets one whenever the loop has turned; where it waits for a
worker that has started (`Type=notify`), it is told that too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import traceback

from headgate.jobs.root_cause import own_place

logger = logging.getLogger("headgate.worker")

BLOCKED_FOR = 10.0
"""After how many seconds the first line is logged; each further line after twice as long."""

ALLOWED = "WATCHDOG_USEC"
"""The variable in which systemd says after how many microseconds without a sign of life it kills the process.

0 means never, as sd_watchdog_enabled(3) reads it.
"""


def watch_loop(loop: asyncio.AbstractEventLoop, *, blocked_for: float = BLOCKED_FOR) -> None:
    """Start a thread that logs where the calling thread, which runs the loop, is while the loop does not turn."""
    watched = threading.get_ident()
    address, allowed = os.environ.get("NOTIFY_SOCKET"), os.environ.get(ALLOWED, "")
    is_awaited = address is not None and allowed.isdecimal() and int(allowed) > 0
    pause = min(blocked_for / 2, int(allowed) / 3e6) if is_awaited else blocked_for / 2

    def watch() -> None:
        has_turned, never = threading.Event(), threading.Event()
        while not loop.is_closed():
            has_turned.clear()
            try:
                loop.call_soon_threadsafe(has_turned.set)
            except RuntimeError:  # It was closed meanwhile.
                return
            waited, limit = 0.0, blocked_for
            # The loop of a process that was frozen turns as soon as it continues.
            while not (has_turned.wait(limit - waited) or has_turned.wait(blocked_for / 10)):
                waited, limit = limit, 2 * limit
                logger.error(
                    "the event loop has been blocked for %g s%s: this worker starts and ends no jobs, and after its "
                    "lease other workers take them over; if it does not continue, kill it, and make the task a plain "
                    "def",
                    waited,
                    _place_of(watched),
                )
            if address is not None and is_awaited:
                _notify(address, b"WATCHDOG=1", "gets no sign of life, and will kill this worker")
            never.wait(pause)

    threading.Thread(target=watch, name="headgate-loop-watchdog", daemon=True).start()


def notify_started() -> None:
    """Report to systemd, if it is there, that this worker has started: only then its watchdog begins."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        _notify(address, b"READY=1", "does not learn that this worker has started, and may stop it")


def _notify(address: str, state: bytes, otherwise: str) -> None:
    """Send systemd a state, as sd_notify(3) does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            # A name that begins with @ is not in the file system.
            notified.sendto(state, address.replace("@", "\0", 1) if address.startswith("@") else address)
    except OSError as error:
        logger.warning("systemd %s: %s: %s", otherwise, address, error)


def _place_of(thread: int) -> str:
    """Return the line of the user's own code that the thread runs, to follow a verb."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    stack = "".join(traceback.format_stack(frame))
    place = own_place(stack, stack)
    return "" if place is None else f" by {place.function} at {place.file}:{place.line}"
