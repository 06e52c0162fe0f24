"""The supervisor: keeps several worker processes alive, and ends when they have."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence

from headgate.clock import SECOND, Clock, wait_for_event

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0

SHORT_LIFE = 10 * SECOND
"""A worker that lives longer (microseconds) has worked: its next death begins a new count."""

SHORT_LIVES = 5
"""So many short lives of one worker in a row, and all is given up."""

CANNOT_START = (1, 2)
"""Exit codes of a worker whose very first life tells that the next would end the same way."""

KEPT_DYING = 3

NUMBER = "HEADGATE_WORKER_NUMBER"
"""Tells each worker which one it is, from 1: it takes the place of one that died."""

logger = logging.getLogger("headgate.supervisor")


class Supervisor:
    """Runs `command` in so many processes; a dead one is started again after a pause that grows.

    With `until_done` one that ends with 0 has done its work, and is not started again.
    """

    def __init__(self, command: Sequence[str], processes: int, clock: Clock, *, until_done: bool = False) -> None:
        self._command = command
        self._wanted = processes
        self._clock = clock
        self._until_done = until_done
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._exit_code = 0

    async def run(self) -> int:
        """Return the exit code, once all processes have ended after a signal, or after they kept dying."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with asyncio.TaskGroup() as keepers:
                for worker in range(1, self._wanted + 1):
                    keepers.create_task(self._keep(worker), name=f"headgate-worker-{worker}")
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
        return self._exit_code

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        for process in self._processes.values():
            self._pass_on(process)

    def _pass_on(self, process: Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        is_first = True
        short_lives = 0
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code = await self._live(number)
            if self._stopping.is_set():
                self._judge_last(number, code)
                return
            if self._until_done and code == 0:
                return
            was_short = self._clock.monotonic() - began < SHORT_LIFE
            if is_first and was_short and code in CANNOT_START:
                self._give_up(code)
                return
            is_first = False
            short_lives = short_lives + 1 if was_short else 1
            if short_lives >= SHORT_LIVES:
                logger.critical("worker %d died %d times in a row soon after its start; giving up", number, short_lives)
                self._give_up(KEPT_DYING)
                return
            pause = min(FIRST_PAUSE * 2.0**short_lives, LONGEST_PAUSE)
            logger.error("worker %d ended with %s; it is started again in %g s", number, exit_worded(code), pause)
            await wait_for_event(self._clock, self._stopping, pause)

    async def _live(self, number: int) -> int:
        """One life of one worker; its exit code, or minus the signal that ended it."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, NUMBER: str(number)},
            # The end of this pipe tells the worker when its parent was killed.
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C goes to a whole group; here it must not count twice.
            start_new_session=True,
        )
        self._processes[number] = process
        logger.info("worker %d has pid %d", number, process.pid)
        if self._stopping.is_set():
            self._pass_on(process)
        return await process.wait()

    def _judge_last(self, number: int, code: int) -> None:
        if ended_as_told(code, self._signals):
            return
        logger.error("worker %d ended with %s instead of draining", number, exit_worded(code))
        self._exit_code = self._exit_code or KEPT_DYING

    def _give_up(self, code: int) -> None:
        self._exit_code = self._exit_code or code
        self._signals = max(self._signals, 1)
        self._stopping.set()
        for process in self._processes.values():
            self._pass_on(process)


def ended_as_told(code: int, signals: int) -> bool:
    """Whether a worker that was told to end, by so many signals, did that."""
    # 1. Drained. 2. Told to end before it could listen. 3. Told more than once.
    return code == 0 or code == -signal.SIGTERM or signals > 1


def exit_worded(code: int) -> str:
    """How a process ended: an exit code, or minus the signal that ended it."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
