"""The terminal while a picture is shown: keys without Enter, signals, and everything as it was afterwards."""

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
    """The whole screen of a terminal. `on_key` is told of each key, `on_change` of a new size or of being back.

    It ends with SIGTERM, SIGINT or SIGHUP by setting `ended`. Suspended (Ctrl-Z), it is as it was before.
    """

    def __init__(self, on_key: Callable[[str], None], on_change: Callable[[], None]) -> None:
        self.ended = asyncio.Event()
        self.console = Console(highlight=False)
        self._on_key = on_key
        self._on_change = on_change
        # What the picture is made of asks the standard output what it can show, so that stays as it is.
        self._live = Live(console=self.console, screen=True, auto_refresh=False, transient=True, redirect_stdout=False)
        # Without keys to read, as with its input from a file, it is shown all the same.
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[object] | None = None

    @property
    def has_keys(self) -> bool:
        return self._input is not None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Take the screen and the keys until the block ends, however it does."""
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
        """Show this picture instead of the one before."""
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
                # A terminal that has gone has nothing to be restored.
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _suspend(self) -> None:
        self._leave()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it stands until it is continued.
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._enter()

    def _come_back(self) -> None:
        """After SIGSTOP nothing was put away, but the shell has changed the terminal."""
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
