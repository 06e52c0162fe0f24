"""Children: the processes of a node that run its process tasks, one attempt at a time each, and are reused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from headgate.clock import SECOND, SystemClock, microseconds
from headgate.engine.child_messages import (
    IGNORED_SIGNALS,
    Annotated,
    Answer,
    AttemptRequest,
    ChildHook,
    ChildMessage,
    ChildSetup,
    CostSettled,
    Logged,
    NotReady,
    Progressed,
    Ready,
    Update,
    decode_message,
    encode,
)
from headgate.engine.stop_signals import exit_worded
from headgate.errors import ProcessDied
from headgate.tasks.hooks import LifecycleHook


def resident_memory(pid: int) -> int:
    """Return the bytes of memory that a process occupies, without what is swapped out; 0 if they cannot be read.

    It may block for some milliseconds, so it is called in threads.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # No /proc, as on macOS.
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        found = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True, text=True, timeout=5
        )
        return int(found.stdout) * 1024
    return 0


BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from headgate.engine.child import main; main({})"

CHILD_EXIT_TIMEOUT = 2.0
"""Seconds that idle children have to call their shutdown functions and end when the node ends."""


class ChildBounds(NamedTuple):
    """The bounds at which a child is replaced: its number of attempts, and the bytes of memory that it occupies.

    None: never. An attempt is not ended for it.
    """

    attempts: int | None = None
    memory: int | None = None


UNBOUNDED = ChildBounds()

_connections: WeakSet[socket.socket] = WeakSet()


def _close_in_fork() -> None:
    """Close the connections of all children in a fork: it would hide from them that the node has ended."""
    for end in _connections:
        # Not `close()`, which waits until the file of the connection is closed as well.
        if (descriptor := end.detach()) >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_close_in_fork)


class Child:
    """One process in its own process group. All methods but `kill` block, so they are called in threads."""

    def __init__(self, module: str, hooks: tuple[ChildHook, ...]) -> None:
        # Import ignores entries that are not text.
        search_path = [entry for entry in sys.path if isinstance(entry, str)]
        here, there = socket.socketpair()
        for end in (here, there):
            _connections.add(end)
            # The program may have set a default timeout for its sockets; these wait for as long as a function runs.
            end.settimeout(None)
        # They would end a child that cannot ignore them yet: it starts with those blocked that this thread has blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BOOT.format(there.fileno()), json.dumps(search_path)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                    process_group=0,
                )
        except BaseException:
            here.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._socket = here
        self._file = here.makefile("rwb")
        self._module = module
        self._hooks = hooks
        self._is_ready = False
        self._attempts = 0
        self._memory = 0

    def make_ready(self) -> None:
        """Return when it can take requests. Raises ProcessDied if the import or a startup function of it fails."""
        if self._is_ready:
            return
        self._write(encode(_setup(self._module, self._hooks)))
        match self._receive().body:
            case Ready():
                self._is_ready = True
            case NotReady(what, error):
                raise ProcessDied(f"{what}: {error.type}: {error.message}")
            case other:
                raise ProcessDied(f"a child process sent {type(other).__name__} before any request")

    def ask(self, request: AttemptRequest, on_update: Callable[[Update], None]) -> Answer:
        """Run one attempt in it and return the answer. Raises ProcessDied if it ends before it has answered."""
        self._write(encode(request))
        attempt = request.job.id, request.job.fence
        while True:
            message = self._receive()
            is_about_it = (message.job, message.fence) == attempt
            match message.body:
                case CostSettled() | Progressed() | Annotated() | Logged() as update:
                    # A thread that outlived its function may still send updates of an attempt that has ended.
                    if is_about_it:
                        on_update(update)
                case Ready() | NotReady() as body:
                    raise ProcessDied(f"a child process answered a request with {type(body).__name__}")
                case answer:
                    if not is_about_it:
                        raise ProcessDied(
                            f"a child process answered for job {message.job!r}, which it was not requested to run"
                        )
                    self._attempts += 1
                    return answer

    def measure_memory(self) -> None:
        """Read how much memory it occupies, for `is_worn`."""
        self._memory = resident_memory(self._process.pid)

    def is_worn(self, bounds: ChildBounds) -> bool:
        """Whether it has reached the bounds, so that another child is to run the next attempt."""
        has_run_enough = bounds.attempts is not None and self._attempts >= bounds.attempts
        return has_run_enough or (bounds.memory is not None and self._memory > bounds.memory)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to its process group; return immediately."""
        # Its process id stays reserved until it is waited for, so this hits no other process.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Close the connection, so that an idle child calls its shutdown functions and ends."""
        # What could not be sent to a child that has died is sent once more here.
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()

    def end(self, timeout: float) -> None:
        """Hang up and wait until the process ends; kill it after `timeout` seconds."""
        self.hang_up()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def wait(self) -> None:
        """Return when the process has ended, or after 2 s: the thread that killed it may still wait for it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CHILD_EXIT_TIMEOUT)

    def _write(self, message: bytes) -> None:
        try:
            self._file.write(message + b"\n")
            self._file.flush()
        except OSError:
            raise self._died() from None

    def _receive(self) -> ChildMessage:
        try:
            line = self._file.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise self._died()
        message: ChildMessage = decode_message(line)
        return message

    def _died(self) -> ProcessDied:
        # Processes that it started would otherwise continue.
        self.kill()
        code = self._process.wait()
        if code >= 0:
            how = f"ended with {exit_worded(code)}"
        else:
            how = f"was killed by {exit_worded(code)}"
            if code == -signal.SIGKILL:
                how += ", as the kernel does when memory runs out"
        if not self._is_ready:
            return ProcessDied(
                f"the child process {how} before it was ready; put the code of the main program under "
                '`if __name__ == "__main__":`, because child processes import it'
            )
        return ProcessDied(f"the child process that ran the attempt {how}")


class ChildCall:
    """One attempt in a child, whose function is in `module`: first `prepare`, then `run`, both in a thread.

    `kill` it at any time, from any thread.
    """

    def __init__(self, children: Children, module: str) -> None:
        self._children = children
        self._module = module
        self._child: Child | None = None
        self._is_killed = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Take a child and make it ready. Raises ProcessDied."""
        child = self._children.take(self._module)
        with self._lock:
            self._child = child
            if self._is_killed:
                child.kill()
        try:
            child.make_ready()
        except BaseException:
            self.release(is_usable=False)
            raise

    def run(self, request: AttemptRequest, on_update: Callable[[Update], None]) -> Answer:
        """Run the attempt in the child, and keep the child for others. Raises ProcessDied."""
        assert self._child is not None, "prepare() comes first"
        is_usable = False
        try:
            answer = self._child.ask(request, on_update)
            is_usable = True
            if self._children.bounds.memory is not None:
                self._child.measure_memory()
            return answer
        finally:
            self.release(is_usable=is_usable)

    def kill(self) -> None:
        """Kill the child, and with it the attempt."""
        with self._lock:
            self._is_killed = True
            if self._child is not None:
                self._child.kill()

    def release(self, *, is_usable: bool = True) -> None:
        """Return the child that was prepared, if there is one, for other attempts, or to end it."""
        with self._lock:
            child, self._child = self._child, None
            is_usable = is_usable and not self._is_killed
        if child is not None:
            self._children.put_back(child, is_usable=is_usable)


class Children:
    """The child processes of one node: as many as process tasks have run at once, one attempt at a time each.

    A child that has reached the `bounds` ends, and the next attempt gets a new one.
    """

    def __init__(self, hooks: Iterable[LifecycleHook] = (), bounds: ChildBounds = UNBOUNDED) -> None:
        self._hooks = tuple(
            ChildHook(hook.moment, hook.function.__module__, hook.function.__qualname__) for hook in hooks
        )
        self.bounds = bounds
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        # Children that were replaced: each calls its shutdown functions and ends by itself.
        self._ending: list[Child] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, module: str) -> Child:
        """Return an idle child that is alive, or a new one."""
        child = self._idle_child() or Child(module, self._hooks)
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

    def put_back(self, child: Child, *, is_usable: bool) -> None:
        """Keep the child for the next attempt, or end it if it is not usable."""
        with self._lock:
            self._busy.discard(child)
            is_usable = is_usable and not self._is_closed
            is_replaced = is_usable and child.is_worn(self.bounds)
            if is_replaced:
                # Those that have ended meanwhile need not be waited for any more.
                self._ending = [*(ending for ending in self._ending if ending.is_alive), child]
            elif is_usable:
                self._idle.append(child)
                return
        if is_replaced:
            # Not waited for: its result is to be stored now.
            child.hang_up()
            return
        child.kill()
        child.end(CHILD_EXIT_TIMEOUT)

    def kill_all(self) -> None:
        """Kill the busy children and keep no more."""
        with self._lock:
            self._is_closed = True
            for child in self._busy:
                child.kill()

    def close(self) -> None:
        """End all children, and return when they have ended; blocks."""
        self.kill_all()
        with self._lock:
            idle, self._idle = self._idle, []
            ending, self._ending = self._ending, []
            killed = list(self._busy)
        # They end at the same time, and not one after the other.
        for child in idle:
            child.hang_up()
        clock = SystemClock()  # real processes, real time
        until = clock.monotonic() + microseconds(CHILD_EXIT_TIMEOUT)
        for child in [*idle, *ending]:
            child.end((until - clock.monotonic()) / SECOND)
        for child in killed:
            child.wait()

    @property
    def any_alive(self) -> bool:
        """Whether there is a process to end."""
        return bool(self._idle or self._busy or self._ending)


def _setup(module: str, hooks: tuple[ChildHook, ...]) -> ChildSetup:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name == "__main__" and path is not None:
        # A folder or a zip file was run, which is the path of the program.
        name, path = None, Path(path).parent
    return ChildSetup(
        arguments=[os.fsencode(argument) for argument in sys.argv],
        # A package: multiprocessing does nothing for a module `__main__`, which it finds in the package by itself.
        main_name=None if name is None else name.removesuffix(".__main__"),
        main_path=None if path is None else os.fsencode(Path(path).absolute()),
        module=module,
        hooks=hooks,
    )
