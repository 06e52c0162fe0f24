"""Children: the processes of a node that run its process tasks, one for each that runs, kept for the next."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from headgate.engine.child_messages import (
    Answer,
    Aside,
    AttemptRequest,
    ChildMessage,
    ChildSetup,
    CostSettled,
    ImportFailed,
    Logged,
    Progressed,
    Ready,
    decode_said,
    encode,
)
from headgate.errors import ProcessDied

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from headgate.engine.child import main; main({})"

GOODBYE = 2.0
"""Seconds that idle children get to end on their own when the node does."""


class Child:
    """One process, in a group of its own. All but `kill` block, so they are called in threads."""

    def __init__(self, module: str) -> None:
        here, there = socket.socketpair()
        try:
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BOOT.format(there.fileno()), json.dumps(_search_path())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                    process_group=0,
                )
        except BaseException:
            here.close()
            raise
        self._socket = here
        self._file = here.makefile("rwb")
        self._module = module
        self._is_ready = False

    def make_ready(self) -> None:
        """Return when it can take requests. Raises ProcessDied if it cannot import what it has to."""
        if self._is_ready:
            return
        self._write(encode(_setting(self._module)))
        match self._hear().word:
            case Ready():
                self._is_ready = True
            case ImportFailed(error):
                raise ProcessDied(
                    f"a child process could not import module {self._module!r}: {error.type}: {error.message}"
                )
            case other:
                raise ProcessDied(f"a child process answered with {type(other).__name__} before it was asked")

    def ask(self, request: AttemptRequest, on_aside: Callable[[Aside], None]) -> Answer:
        """Let it run one attempt. Raises ProcessDied if it ends before it has answered."""
        self._write(encode(request))
        attempt = request.job.id, request.job.fence
        while True:
            said = self._hear()
            is_about_it = (said.job, said.fence) == attempt
            match said.word:
                case CostSettled() | Progressed() | Logged() as aside:
                    # A thread that outlived its function still speaks of an attempt that is over.
                    if is_about_it:
                        on_aside(aside)
                case Ready() | ImportFailed() as word:
                    raise ProcessDied(f"a child process answered with {type(word).__name__} to a request")
                case answer:
                    if not is_about_it:
                        raise ProcessDied(f"a child process answered for job {said.job!r}, which it was not asked for")
                    return answer

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, for it and all that it has started; returns at once."""
        # Its number stays taken until it is waited for, so this hits nobody else.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, patience: float) -> None:
        """Close the connection, wait until it is gone, and kill it when that takes too long."""
        self._file.close()
        self._socket.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def wait(self) -> None:
        """Return when it is gone, or after a moment if whoever killed it still sees to that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE)

    def _write(self, message: bytes) -> None:
        try:
            self._file.write(message + b"\n")
            self._file.flush()
        except OSError:
            raise self._died() from None

    def _hear(self) -> ChildMessage:
        try:
            line = self._file.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise self._died()
        said: ChildMessage = decode_said(line)
        return said

    def _died(self) -> ProcessDied:
        # What it had started would go on without it.
        self.kill()
        code = self._process.wait()
        if code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was killed by {_signal_name(-code)}"
            if code == -signal.SIGKILL:
                how += ", as the kernel does when memory runs out"
        if not self._is_ready:
            return ProcessDied(
                f'the child process {how} before it was ready; a program needs `if __name__ == "__main__":` around '
                "what it does, because children import it"
            )
        return ProcessDied(f"the child process that ran the attempt {how}")


class ChildCall:
    """One attempt in a child: first `prepare`, then `run`, both in a thread; `kill` at any time, from anywhere."""

    def __init__(self, children: Children, module: str) -> None:
        self._children = children
        self._module = module
        self._child: Child | None = None
        self._is_killed = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Have a child that is ready. Raises ProcessDied."""
        child = self._children.take(self._module)
        with self._lock:
            self._child = child
            if self._is_killed:
                child.kill()
        try:
            child.make_ready()
        except BaseException:
            self._let_go(is_usable=False)
            raise

    def run(self, request: AttemptRequest, on_aside: Callable[[Aside], None]) -> Answer:
        """Let the child run it, and keep the child for others. Raises ProcessDied."""
        assert self._child is not None, "prepare() comes first"
        is_usable = False
        try:
            answer = self._child.ask(request, on_aside)
            is_usable = True
            return answer
        finally:
            self._let_go(is_usable=is_usable)

    def drop(self) -> None:
        """Give back a child that was prepared and is not needed."""
        self._let_go(is_usable=True)

    def kill(self) -> None:
        """End the child, and with it the attempt, within a moment."""
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()

    def _let_go(self, *, is_usable: bool) -> None:
        with self._lock:
            child, self._child = self._child, None
            is_usable = is_usable and not self._is_killed
        if child is not None:
            self._children.give_back(child, is_usable=is_usable)


class Children:
    """The processes of one node: as many as process tasks have run at once, each with one attempt at a time."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def begin(self, module: str) -> ChildCall:
        """An attempt whose function is in that module; nothing has started yet."""
        return ChildCall(self, module)

    def take(self, module: str) -> Child:
        """An idle child that is alive, or a new one."""
        child = self._idle_child() or Child(module)
        with self._lock:
            self._busy.add(child)
            if self._is_closed:
                child.kill()
        return child

    def _idle_child(self) -> Child | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                child = self._idle.pop()
            if child.is_alive:
                return child
            child.end(0)

    def give_back(self, child: Child, *, is_usable: bool) -> None:
        """Keep it for the next attempt, or end it."""
        with self._lock:
            self._busy.discard(child)
            if is_usable and not self._is_closed:
                self._idle.append(child)
                return
        child.kill()
        child.end(GOODBYE)

    def kill_all(self) -> None:
        """End those that are at work, and take no more."""
        with self._lock:
            self._is_closed = True
            for child in self._busy:
                child.kill()

    def close(self) -> None:
        """End all of them, and return when they are gone; blocks."""
        self.kill_all()
        with self._lock:
            idle, self._idle = self._idle, []
            killed = list(self._busy)
        for child in idle:
            child.end(GOODBYE)
        for child in killed:
            child.wait()

    @property
    def are_there(self) -> bool:
        """Whether there is any process to end."""
        return bool(self._idle or self._busy)

    def statistics(self) -> dict[str, int]:
        """How many run an attempt, and how many wait for one."""
        with self._lock:
            return {"busy": len(self._busy), "idle": len(self._idle)}


def _setting(module: str) -> ChildSetup:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    return ChildSetup(
        arguments=list(sys.argv),
        main_name=name,
        main_path=None if path is None else str(Path(path).absolute()),
        module=module,
    )


def _search_path() -> list[str]:
    """What import looks through; it passes over entries that are no text, so nothing is lost with them."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
