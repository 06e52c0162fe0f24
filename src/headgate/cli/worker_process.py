"""The set-up of a worker process: its event loop, garbage collection, switch interval, stacks and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from headgate.app import Headgate
from headgate.cli.supervisor import NUMBER

if TYPE_CHECKING:
    from headgate.observe.metrics import MetricsServer

logger = logging.getLogger("headgate")


def tune_process() -> None:
    """Set up this process for many short jobs; call it after all code is loaded."""
    # A busy event loop holds the interpreter for a switch interval at a time, 5 ms by default, while the storage's
    # writer thread waits for it. With 0.5 ms a busy worker recorded 9,446 rows/s instead of 650.
    sys.setswitchinterval(0.0005)
    # Loaded code stays, and jobs leave few cycles: rare collection made a worker up to 20 % faster.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, if it is installed; None for asyncio's own loop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def print_stacks_on_signal(number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
    """Write all stacks to stderr on each signal, also while a function blocks the loop.

    `faulthandler` is not used: it reads threads that run meanwhile, and has ended the process.
    """

    def write(_number: int, _frame: FrameType | None) -> None:
        # Not through the buffer of sys.stderr: the signal may have interrupted a write to it.
        text = stacks_as_text(loop).encode(errors="backslashreplace")
        # Nobody may read stderr any more; raised here, that would end whatever runs on the event loop.
        with contextlib.suppress(OSError):
            os.write(2, text)

    signal.signal(number, write)


def stacks_as_text(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stacks of all threads and tasks as text."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f"Thread {names.get(ident, ident)}:\n")
        traceback.print_stack(frame, file=text)
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=text)
    return text.getvalue()


def serve_metrics(app: Headgate, port: int, host: str, *, store: bool) -> MetricsServer:
    """Serve the metrics of the app, or new ones if it has none; the n-th worker of a supervisor uses the n-th port.

    Raises HeadgateError if the package for it is missing, or the port is taken.
    """
    from headgate.observe.metrics import PrometheusMetrics

    number = int(os.environ.get(NUMBER, "1"))
    for instrument in app._instruments:
        if isinstance(instrument, PrometheusMetrics):
            if store:
                logger.warning(
                    "--metrics-store has no effect: the app has metrics of its own; write PrometheusMetrics(store=True)"
                )
            return instrument.serve(port + number - 1, host)
    # Only the first worker reads the store: all would report the same.
    metrics = PrometheusMetrics(store=store and number == 1)
    app.instrument(metrics)
    return metrics.serve(port + number - 1, host)
