"""The terminal in full-screen mode: single keys, signals, and restoring it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Terminal:
    """The whole screen of a terminal. Calls `on_key` with each key, `on_change` after a new size or a suspension.

    SIGTERM, SIGINT and SIGHUP set `ended`. While suspended (Ctrl-Z), the terminal is restored.
    """

    def __init__(self, on_key: Callable[[str], None], on_change: Callable[[], None]) -> None:
        self.ended = asyncio.Event()
        self.console = Console(highlight=False)
        self._on_key = on_key
        self._on_change = on_change
        # Rendering reads the encoding of the standard output, so that is not replaced.
        self._live = Live(console=self.console, screen=True, auto_refresh=False, transient=True, redirect_stdout=False)
        # Without keys, for example with input from a file, the screen is still shown.
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[object] | None = None

    @property
    def has_keys(self) -> bool:
        return self._input is not None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Take the screen and the keys until the block ends."""
        loop = asyncio.get_running_loop()
        self._enter()
        try:
            for number in ENDING:
                loop.add_signal_handler(number, self.ended.set)
            loop.add_signal_handler(signal.SIGWINCH, self._on_change)
            loop.add_signal_handler(signal.SIGTSTP, self._suspend)
            loop.add_signal_handler(signal.SIGCONT, self._come_back)
            if self._input is not None:
                loop.add_reader(self._input, self._read)
            yield
        finally:
            if self._input is not None:
                loop.remove_reader(self._input)
            self._leave()
            for number in (*ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
                loop.remove_signal_handler(number)

    def draw(self, picture: RenderableType) -> None:
        """Replace the shown text."""
        self._live.update(picture, refresh=True)

    def _enter(self) -> None:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        self._live.start()

    def _leave(self) -> None:
        self._live.stop()
        if self._input is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                # A closed terminal need not be restored.
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _suspend(self) -> None:
        self._leave()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process stops here until it is continued.
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._enter()

    def _come_back(self) -> None:
        """Enter again: after SIGSTOP nothing was restored, but the shell has changed the terminal."""
        if self._input is not None:
            tty.setcbreak(self._input)
        self._on_change()

    def _read(self) -> None:
        assert self._input is not None
        keys = os.read(self._input, 64).decode(errors="ignore")
        if not keys:
            self.ended.set()
        for key in keys:
            self._on_key(key)
