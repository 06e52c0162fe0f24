"""The child process of process tasks: a small program that runs one function after the other for its node.

It ends when its node closes the connection, even in the middle of a function.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import spawn
from typing import IO, Any, cast

from headgate.engine.child_messages import (
    IGNORED_SIGNALS,
    Annotated,
    Answer,
    ArgumentsRejected,
    AttemptRequest,
    ChildHook,
    ChildMessage,
    ChildSetup,
    CostSettled,
    Logged,
    MessageBody,
    NotReady,
    Progressed,
    Raised,
    Ready,
    ResultNotStorable,
    ReturnedValue,
    decode_request,
    decode_setup,
    encode,
)
from headgate.engine.remote_error import describe_class
from headgate.errors import PayloadError
from headgate.jobs.annotation import Annotation
from headgate.jobs.job import ClaimedJob, JobError, describe_error, truncated_error
from headgate.jobs.report import kept_level, kept_line, kept_message, kept_name
from headgate.tasks.context import JobContext, JobLogCapture, enter
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.executor_kind import IN_CHILD, find_function
from headgate.tasks.hooks import Moment
from headgate.tasks.modules import declaring_only
from headgate.tasks.payload import PayloadType

IDLE_EXIT_TIMEOUT = 5.0
"""Seconds that an idle child has to end on its own after its node has ended; then it is killed."""


def keep_from_forks(descriptor: int, on_fork: Callable[[], None]) -> None:
    """Ignore `IGNORED_SIGNALS`, and hold the connection in this process only; a fork calls `on_fork` first.

    A fork that held the connection could send messages for the job, and would hide the death of the child from the
    node.
    """
    # `exec` closes the connection and resets a handler that does nothing, but would keep SIG_IGN: a program that a
    # function has started could not be terminated then.
    os.set_inheritable(descriptor, False)
    before = {number: signal.signal(number, _ignore) for number in IGNORED_SIGNALS}
    for number in IGNORED_SIGNALS:
        signal.siginterrupt(number, False)
    # The node has blocked them for the time until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    masks = threading.local()
    is_fork = False

    def hold_signals() -> None:
        # A fork may be terminated as soon as it has a process id; the signal waits until the fork's handlers are set.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)

    def release_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def detach_fork() -> None:
        nonlocal is_fork
        # Only once: a fork of a fork may use the descriptor for something else.
        if not is_fork:
            is_fork = True
            on_fork()
            # The descriptor stays open on /dev/null: objects that hold its number close it later.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)
            for number, handler in before.items():
                if signal.getsignal(number) is _ignore:
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)
        release_signals()

    os.register_at_fork(before=hold_signals, after_in_parent=release_signals, after_in_child=detach_fork)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing."""


def main(descriptor: int) -> None:
    """Serve the node at the other end of the socket until the node closes it."""
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as file:
        child = _Child(cast(IO[bytes], file))
        keep_from_forks(descriptor, child.become_fork)
        try:
            child.serve()
        except BaseException:
            # Not raised: to close the connection, it would wait for the thread that reads from it.
            try:
                traceback.print_exc()
            finally:
                os._exit(1)
        if child.is_fork:
            # A fork returned from the function as well. It must not answer, nor run the exit handlers of this process.
            os._exit(0)


class _Child:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writing = threading.RLock()
        self._is_sending = False
        self._unsent: deque[bytes] = deque()
        self._requests: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._around: Callable[[Callable[[], Any]], Any] = lambda call: call()
        self._is_busy = True
        self.is_fork = False
        self.lowest: int | None = None

    def serve(self) -> None:
        setup = decode_setup(self._file.readline())
        self._functions = _Functions(setup)
        threading.Thread(target=self._listen, name="headgate-node", daemon=True).start()
        IN_CHILD.set()
        JobLogCapture(self).start()
        sys.argv = [os.fsdecode(argument) for argument in setup.arguments]
        try:
            if setup.hooks and setup.hooks[0].moment is Moment.CALL:
                self._around = find_function(setup.hooks[0].module, setup.hooks[0].function)
            self._around(partial(self._functions.load, setup.module))
        except BaseException as error:
            self.send(NotReady(f"a child process could not import module {setup.module!r}", describe_error(error)))
            return
        with contextlib.ExitStack() as shutdown:
            if not self._start_up(setup.hooks, shutdown):
                return
            self._is_busy = False
            self.send(Ready())
            while (line := self._requests.get()) is not None:
                if isinstance(line, BaseException):
                    raise line
                request = decode_request(line)
                answer = self._answer(request)
                # Set before the answer is sent: the next request may follow at once.
                self._is_busy = False
                self.send(answer, request.job)

    def _start_up(self, hooks: Sequence[ChildHook], shutdown: contextlib.ExitStack) -> bool:
        """Call the startup functions; return False if one failed. `shutdown` calls the shutdown functions."""
        for hook in hooks:
            try:
                self._functions.load(hook.module)
                function = find_function(hook.module, hook.function)
                if hook.moment is Moment.SHUTDOWN:
                    shutdown.callback(self._shut_down, function)
                elif hook.moment is Moment.STARTUP:
                    function()
            except BaseException as error:
                what = f"startup function {hook.function!r} raised in a child process"
                self.send(NotReady(what, describe_error(error)))
                return False
        return True

    def _shut_down(self, function: Callable[[], object]) -> None:
        if self.is_fork:
            return
        try:
            function()
        except BaseException:
            # There is no job or node to report it to.
            traceback.print_exc()

    def become_fork(self) -> None:
        """Mark this process as a fork made by a function: it sends and receives nothing."""
        self.is_fork = True
        self._requests = queue.SimpleQueue()
        self._requests.put(None)

    def _listen(self) -> None:
        """Read requests in a thread, so that the end of the node is noticed while a function runs."""
        try:
            while (line := self._file.readline()).endswith(b"\n"):
                self._is_busy = True
                self._requests.put(line)
        except OSError:
            # The connection is reset, not closed, if the node has ended before it has read all that was sent.
            pass
        except BaseException as error:
            # Such as a lack of memory for a large request. It ends the process: nothing reads requests any more.
            self._requests.put(error)
            return
        if not self._is_busy:
            self._requests.put(None)
            threading.Event().wait(IDLE_EXIT_TIMEOUT)
        # The child's own process group: processes that its functions started end with it.
        os.killpg(0, signal.SIGKILL)

    def send(self, body: MessageBody, about: ClaimedJob | None = None) -> None:
        if self.is_fork:
            return
        message = ChildMessage(body) if about is None else ChildMessage(body, about.id, about.fence)
        self._unsent.append(encode(message) + b"\n")
        with self._writing:
            # The garbage collector may run code that logs during a send; the running send then sends that line as well.
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._unsent:
                    self._file.write(self._unsent.popleft())
                    self._file.flush()
            finally:
                self._is_sending = False

    def progress(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Send the progress of the running job."""
        self.send(Progressed(fraction, kept_message(message)), job)

    def annotate(self, job: ClaimedJob, changes: Mapping[str, Annotation | None]) -> None:
        """Send changed annotations of the running job."""
        self.send(Annotated(dict(changes)), job)

    def log(self, job: ClaimedJob, level: int, logger: str, message: str) -> None:
        """Send a log line of the running job; the node counts the lines."""
        self.send(Logged(kept_level(level), kept_name(logger), kept_line(message)), job)

    def _answer(self, request: AttemptRequest) -> Answer:
        self.lowest = request.log_level
        try:
            function, payload = self._functions.find(request)
            try:
                arguments, named = payload.decode(request.job.payload)
            except PayloadError as error:
                return ArgumentsRejected(truncated_error(error))
            enter(JobContext(request.job, request.limits, _Charge(self, request.job), self))
            result = self._around(partial(function, *arguments, **named))
            try:
                payload.require_run(result)
                return ReturnedValue(payload.encode_result(result) if request.needs_result else "null")
            except PayloadError as error:
                return ResultNotStorable(truncated_error(error))
        except BaseException as error:
            return Raised(_with_parent_name(describe_error(error)), describe_class(error))
        finally:
            # A child may be killed at any later time, and its output must not be lost.
            for stream in (sys.stdout, sys.stderr):
                # The function may have closed the stream, or set it to None.
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()


class _Charge:
    """The charge of one attempt, for its context; it sends changes to the node."""

    def __init__(self, child: _Child, job: ClaimedJob) -> None:
        self._child = child
        self._job = job

    def settle(self, limit: str, actual: int) -> None:
        self._child.send(CostSettled(limit, actual), self._job)


class _Functions:
    """The functions that this process has been requested to run, with the types of their arguments."""

    def __init__(self, setup: ChildSetup) -> None:
        self._setup = setup
        self._known: dict[tuple[str, str], tuple[Any, PayloadType]] = {}

    def load(self, module: str) -> None:
        """Import a module; the node's program as `__mp_main__`, so that its `__main__` block does not run."""
        setup = self._setup
        with declaring_only("a child process"):
            if module != "__main__":
                importlib.import_module(module)
            elif sys.modules["__main__"].__name__ == "__main__":
                named = {"init_main_from_name": setup.main_name} if setup.main_name is not None else {}
                placed = {"init_main_from_path": os.fsdecode(setup.main_path)} if setup.main_path is not None else {}
                spawn.prepare(named or placed)

    def find(self, request: AttemptRequest) -> tuple[Any, PayloadType]:
        key = request.module, request.function
        if key not in self._known:
            self.load(request.module)
            found = find_function(*key)
            if isinstance(found, TaskDefinition):
                self._known[key] = found.function, found.payload.in_clear()
            else:
                where = f"task {request.job.task!r}"
                payload = PayloadType(found, where, request.max_payload, hides_values=request.hides_values)
                self._known[key] = found, payload
        return self._known[key]


def _with_parent_name(error: JobError) -> JobError:
    """Return the error with the program's module as `__main__`: it has another name in this process."""
    prefix = "__mp_main__."
    if not error.type.startswith(prefix):
        return error
    return JobError("__main__." + error.type.removeprefix(prefix), error.message, error.traceback, error.data)
