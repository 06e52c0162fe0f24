"""A child process that is forked from the test."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

from tests.until import patient


def answer_of_forked_child(ask: Callable[[], str]) -> str:
    """What `ask` says in a forked child, or the error that it raises; where its threads are if that takes too long."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(patient(10), file=write, exit=True)
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
