"""The supervisor: runs several worker processes, restarts dead ones, and ends after the last one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.engine.stop_signals import exit_worded, on_stop_signals

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0

SHORT_LIFE = 10 * SECOND
"""The count of short runs begins again after a worker has run for longer than this (microseconds)."""

SHORT_LIVES = 5
"""The supervisor gives up after this many short runs of one worker in a row."""

CANNOT_START = (1, 2)
"""Exit codes of a first run after which a restart would end in the same way."""

KEPT_DYING = 3

STOPPED_BY_OPERATOR = 4
"""The exit code of a worker that an operator has stopped through the store; it is not started again."""

NUMBER = "HEADGATE_WORKER_NUMBER"
"""The variable with the number of a worker, from 1; a restarted worker keeps it."""

logger = logging.getLogger("headgate.supervisor")


class Supervisor:
    """Runs `command` in `processes` processes and restarts dead ones after a growing pause.

    With `until_done` a process that ends with 0 is not restarted, nor is one that an operator has stopped.
    """

    def __init__(self, command: Sequence[str], processes: int, clock: Clock, *, until_done: bool = False) -> None:
        self._command = command
        self._count = processes
        self._clock = clock
        self._until_done = until_done
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._exit_code = 0

    async def run(self) -> int:
        """Return the exit code when all processes have ended, after a signal or after too many short runs."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._print_stacks)
        with on_stop_signals(self._on_signal, self._on_signal):
            async with asyncio.TaskGroup() as keepers:
                for worker in range(1, self._count + 1):
                    keepers.create_task(self._keep(worker), name=f"headgate-worker-{worker}")
        return self._exit_code

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        for process in self._processes.values():
            self._pass_on(process)

    def _pass_on(self, process: Process) -> None:
        tell(process, signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _print_stacks(self) -> None:
        for process in self._processes.values():
            tell(process, signal.SIGUSR1)

    async def _keep(self, number: int) -> None:
        is_first = True
        short_lives = 0
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code = await self._live(number)
            if code == STOPPED_BY_OPERATOR:
                logger.info("worker %d was stopped by an operator and is not started again", number)
                return
            if self._stopping.is_set():
                if not ended_as_requested(code, self._signals):
                    logger.error("worker %d ended with %s instead of draining", number, exit_worded(code))
                    self._exit_code = self._exit_code or KEPT_DYING
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
                logger.critical("worker %d ended %d times in a row after a short run; giving up", number, short_lives)
                self._give_up(KEPT_DYING)
                return
            pause = min(FIRST_PAUSE * 2.0**short_lives, LONGEST_PAUSE)
            logger.error("worker %d ended with %s; it is started again in %g s", number, exit_worded(code), pause)
            await wait_for_event(self._clock, self._stopping, pause)

    async def _live(self, number: int) -> int:
        """Run one worker until it ends; return its exit code, or minus the signal that ended it."""
        try:
            process = await start_worker(self._command, {**os.environ, NUMBER: str(number)})
        except OSError as error:
            # What has killed a worker, such as too little memory, may also leave no room for the next one.
            logger.error("worker %d cannot be started: %s", number, error)
            return os.EX_OSERR
        self._processes[number] = process
        logger.info("worker %d has pid %d", number, process.pid)
        if self._stopping.is_set():
            self._pass_on(process)
        return await process.wait()

    def _give_up(self, code: int) -> None:
        self._exit_code = self._exit_code or code
        self._on_signal()


async def start_worker(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
    """Start a worker in a session of its own, with the environment of this process unless another one is given."""
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        # The worker reads the end of this pipe when its parent was killed.
        stdin=PIPE,
        # Ctrl-C goes to the whole process group; it must not reach the worker twice.
        start_new_session=True,
        preexec_fn=ignore_stacks_signal,
    )


def ignore_stacks_signal() -> None:
    """Ignore SIGUSR1, which would end a process that cannot print its stacks yet."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def tell(process: Process | None, number: signal.Signals) -> None:
    """Send a signal to a worker, if there is one that has not ended."""
    if process is not None and process.returncode is None:
        process.send_signal(number)


def ended_as_requested(code: int, signals: int) -> bool:
    """Return whether a worker ended as requested by `signals` signals."""
    # 1. Drained. 2. Signalled before its handlers were set. 3. Signalled more than once.
    return code == 0 or code == -signal.SIGTERM or signals > 1
