"""The reloader: restarts a worker when the code changes, for development."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.supervisor import ended_as_requested, start_worker, tell
from headgate.engine.stop_signals import exit_worded, on_stop_signals
from headgate.errors import needing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from watchfiles import Change

logger = logging.getLogger("headgate.reload")


class Reloader:
    """Runs `command`, and restarts it when a Python file below `folder` changes.

    A worker that ends by itself, for example after an error in the code, is started again after the next change.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._stopping = asyncio.Event()
        self._signals = 0
        self._worker: Process | None = None
        self._is_told = False
        self._is_dead = False
        self._ending: asyncio.Task[int]

    async def run(self) -> int:
        """Return the exit code after a signal has ended the worker. Raises DeclarationError without watchfiles."""
        changes = self._watch()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: tell(self._worker, signal.SIGUSR1))
        with on_stop_signals(self._on_signal, self._on_signal):
            logger.info("watching %s for changes of the code", self._folder)
            # Watching begins before the worker starts, so that no change is missed.
            coming = asyncio.ensure_future(anext(changes, None))
            await self._start()
            while (changed := await coming) is not None:
                coming = asyncio.ensure_future(anext(changes, None))
                names = sorted({self._shown(path) for _, path in changed})
                logger.info("%s changed; the worker restarts", ", ".join(names))
                self._tell(signal.SIGTERM)
                await self._ending
                if not self._stopping.is_set():
                    await self._start()
            code = await self._ending
        # A worker that ended by itself has been logged already.
        if self._is_dead or ended_as_requested(code, self._signals):
            return 0
        logger.error("the worker ended with %s instead of draining", exit_worded(code))
        return 1

    def _watch(self) -> AsyncGenerator[set[tuple[Change, str]], None]:
        with needing("--reload needs", "watchfiles", install="'headgate[reload]'"):
            from watchfiles import PythonFilter, awatch
        # It would log the number of files of each change.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        return awatch(self._folder, watch_filter=PythonFilter(), stop_event=self._stopping)

    def _shown(self, path: str) -> str:
        return os.path.relpath(path, self._folder)

    async def _start(self) -> None:
        self._worker = await start_worker(self._command)
        self._is_told = self._is_dead = False
        self._ending = asyncio.create_task(self._end(self._worker), name="headgate-reload")
        if self._stopping.is_set():
            self._tell(signal.SIGTERM)

    async def _end(self, worker: Process) -> int:
        code = await worker.wait()
        if not self._is_told:
            self._is_dead = True
            logger.error("the worker ended with %s; it restarts after the next change", exit_worded(code))
        return code

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        self._tell(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        self._is_told = True
        tell(self._worker, number)
