"""A child process that is forked from the test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.until import patient


def answer_of_forked_child(ask: Callable[[], str]) -> str:
    """What `ask` says in a forked child, or the error that it raises there; "" if it does not return in time."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(patient(10)))
        try:
            answer = ask()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
