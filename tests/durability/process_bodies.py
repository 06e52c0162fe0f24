"""Functions for process tasks: child processes import them from here."""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headgate import Cancel, Fail, Headgate, RateLimited, Retry, Snooze, current_job
from tests.until import patient


class Broken(ValueError):
    """An error whose constructor needs arguments that cannot be passed between processes."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code, why)
        self.why = why

    def __str__(self) -> str:
        return f"broken: {self.why}"


class Score(float):
    """A float as those of numpy: of a subclass."""


class Unit(str):
    __slots__ = ()


class TooLow(Exception):
    def __init__(self, score: float, unit: str) -> None:
        super().__init__("too low")
        self.score = score
        self.unit = unit


@dataclass
class Picture:
    width: int
    takes: timedelta


def double(picture: Picture) -> Picture:
    return Picture(picture.width * 2, picture.takes)


def pid() -> int:
    return os.getpid()


_kept: list[bytearray] = []


def leak(megabytes: int) -> int:
    """Keeps so much memory when it has returned."""
    _kept.append(bytearray(os.urandom(1)) * (megabytes * 1_000_000))
    return os.getpid()


def die(times: int = 100) -> str:
    """Killed from outside, as by a kernel without memory, on its first attempts."""
    if current_job().attempt <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"attempt {current_job().attempt}"


def leave(code: int) -> None:
    os._exit(code)


def compute(folder: str, seconds: float) -> str:
    """Computes without a pause, and has started a process of its own; writes down who runs."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(folder) / "new").write_text(f"{os.getpid()} {helper.pid}")
    (Path(folder) / "new").rename(Path(folder) / "pids")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    helper.kill()
    helper.wait()
    return "done"


def fail(kind: str) -> None:
    match kind:
        case "broken":
            raise Broken(7, why="the machine")
        case "low":
            raise TooLow(Score(0.25), Unit("points"))
        case "exit":
            sys.exit(3)
        case "huge":
            raise ValueError("x" * 50_000_000)
        case "stop":
            raise StopIteration
        case _:
            raise KeyError(kind)


def tell_about_the_job() -> dict[str, Any]:
    job = current_job()
    job.settle("calls", 3)
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempt,
        "headers": dict(job.headers),
        "enqueued_at": job.enqueued_at.isoformat(),
        "waited_for": job.waited_for,
        "cancelled": job.cancelled,
    }


def put_off(folder: str) -> str:
    turn = len(list(Path(folder).iterdir()))
    (Path(folder) / f"turn-{turn}").touch()
    if turn == 0:
        raise Snooze(0.05)
    if turn == 1:
        raise RateLimited(retry_after=0.05)
    return f"attempt {current_job().attempt}"


def enqueue_another(url: str) -> str:
    """A function that enqueues, through an app of its own."""
    app = Headgate(url)
    task = app.task(name="pid")(pid)
    try:
        return task.sync.enqueue().id
    finally:
        app.sync.close()


def enqueue_another_in_a_thread(url: str) -> str:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(enqueue_another, url).result()


def give_back_an_object() -> Any:
    return object()


def say_hello() -> None:
    print("hello from the child", end="")  # noqa: T201


def speaks(lines: int) -> None:
    job = current_job()
    logging.getLogger("shop").warning("from a child")
    logging.getLogger("shop").info("below what ordinary logging lets through there")
    for number in range(lines):
        job.log.info("line %d", number)
    job.progress(0.75, "nearly")
    job.annotate(lines=lines, **{"first-attempt": job.annotations.get("first-attempt", job.attempt)})
    os.kill(os.getpid(), signal.SIGKILL)


def speaks_and_computes() -> None:
    current_job().progress(0.5)
    time.sleep(600)


def annotates() -> dict[str, object]:
    job = current_job()
    if job.attempt == 1:
        job.annotate(first=1)
        raise ValueError("once more")
    seen: dict[str, object] = dict(job.annotations)
    job.annotate(second=2, first=None)
    return seen


def leaves_unclosed(times: int) -> int:
    """What it drops logs when the garbage collector comes by, as libraries do."""

    class Unclosed:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            logging.getLogger("library").warning("unclosed")

    for number in range(times):
        # At another place each time.
        gc.set_threshold(1 + number % 40)
        Unclosed()
        current_job().log.warning("line")
    gc.collect()
    return times


def terminate_what_it_started() -> list[int]:
    """Asks a program and two forks to terminate, one of them at once, and says how they ended."""
    program = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
    assert program.stdout is not None
    program.stdout.readline()
    program.terminate()
    forks = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _ in range(2)]
    for fork in forks:
        fork.start()
        fork.terminate()
    for fork in forks:
        fork.join(patient(5))
    program.stdout.close()
    return [program.wait(patient(5)), *(fork.exitcode or 0 for fork in forks)]


def crash_beside_a_fork() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    os.kill(os.getpid(), signal.SIGSEGV)


def fork_and_return_in_both() -> str:
    fork = os.fork()
    if fork == 0:
        current_job().progress(0.5, "of the fork")
        return "of the fork"
    _, status = os.waitpid(fork, 0)
    return f"of the child, after {status}"


_may_speak = threading.Event()
_has_spoken = threading.Event()


def speak_too_late() -> str:
    """Leave a thread that reports progress and logs while the next job runs."""
    job = current_job()

    def speak() -> None:
        _may_speak.wait()
        job.log.info("of the first job")
        job.progress(0.25, "of the first job")
        job.settle("calls", 5)
        _has_spoken.set()

    threading.Thread(target=speak, daemon=True).start()
    return "left a thread"


def let_it_speak() -> str:
    _may_speak.set()
    assert _has_spoken.wait(patient(5))
    current_job().log.info("of the second job")
    return "let it speak"


def close_what_it_prints_to() -> int:
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stdout.close()
    sys.stderr = None
    return os.getpid()


def close_stderr() -> None:
    sys.stderr.close()


def decide(how: str) -> None:
    match how:
        case "fail":
            raise Fail("no such order") from KeyError(how)
        case "retry":
            raise Retry(0.01, "not ready")
        case "cancel":
            raise Cancel("withdrawn")
        case _:
            raise OSError(errno.ENOTCONN, "not connected")
