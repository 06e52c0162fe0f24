"""Functions side by side, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.until import patient


class InThread:
    """A function that runs in a thread of its own, which does not keep the process from ending if it hangs."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self, seconds: float = 30) -> None:
        """Wait until it has ended; its error is raised here, and TimeoutError after `patient(seconds)`."""
        self._thread.join(patient(seconds))
        if self._thread.is_alive():
            raise TimeoutError(f"{self._function!r} has not ended within {patient(seconds):g} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self._error = error


def side_by_side(*functions: Callable[[], object]) -> None:
    """Run all of them to their end; an error in one is an error here."""
    for running in [InThread(function) for function in functions]:
        running.end()
