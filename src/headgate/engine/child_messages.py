"""The messages between a node and its child processes: structs as JSON, one per line."""

from __future__ import annotations

import signal

import msgspec

from headgate.jobs.annotation import Annotation
from headgate.jobs.job import ClaimedJob, JobError
from headgate.tasks.hooks import Moment

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that the node handles; they are sent to whole groups of processes. A child ignores them from its start."""


class ChildHook(msgspec.Struct, frozen=True):
    """A function that a child calls at its start, at its end, or with each call."""

    moment: Moment
    module: str
    function: str


class ChildSetup(msgspec.Struct, frozen=True):
    """The setup that lets a child imitate its parent: arguments, main module, the first task's module, and hooks.

    Arguments and paths are bytes, because they need not be UTF-8.
    """

    arguments: list[bytes]
    main_name: str | None
    main_path: bytes | None
    module: str
    hooks: tuple[ChildHook, ...] = ()


class AttemptRequest(msgspec.Struct, frozen=True):
    """A request to run one attempt of the job; its payload is JSON, which the node has decoded."""

    module: str
    function: str
    job: ClaimedJob
    limits: tuple[str, ...]
    max_payload: int
    log_level: int | None = None
    """The lowest level of log lines that are kept; None: none are."""
    needs_result: bool = True
    """Whether the node uses the returned value; otherwise the answer has null instead."""
    hides_values: bool = False
    """Whether errors about arguments and results leave out their values."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child has imported the module."""


class NotReady(msgspec.Struct, frozen=True, tag=True):
    """The child could not import the module, or a startup function raised: `what` says which; it ends."""

    what: str
    error: JobError


class CostSettled(msgspec.Struct, frozen=True, tag=True):
    """The function settles the cost of its start and continues."""

    limit: str
    actual: int


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """The function reports its progress and continues."""

    fraction: float
    message: str | None


class Annotated(msgspec.Struct, frozen=True, tag=True):
    """The function has changed annotations and continues; None removes one."""

    changes: dict[str, Annotation | None]


class Logged(msgspec.Struct, frozen=True, tag=True):
    """The function has logged a line and continues."""

    level: int
    logger: str
    message: str


class ReturnedValue(msgspec.Struct, frozen=True, tag=True):
    """The function returned this, as JSON."""

    result: str


PlainValue = str | int | float | bool | None


class ErrorClass(msgspec.Struct, frozen=True):
    """An exception: its class and base classes as `module:name`, nearest first; its text; the members of a group.

    `attributes` has those that are plain values; text has at most 2,048 characters. `context` is None beside a `cause`.
    """

    names: tuple[str, ...]
    message: str
    members: tuple[ErrorClass, ...] = ()
    attributes: dict[str, PlainValue] = {}
    cause: ErrorClass | None = None
    context: ErrorClass | None = None


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The function raised, also to request an outcome: `Snooze`, `RateLimited`, `Retry`, `Fail` or `Cancel`."""

    error: JobError
    kind: ErrorClass


class ResultNotStorable(msgspec.Struct, frozen=True, tag=True):
    """The function returned a value that cannot be stored."""

    error: JobError


class ArgumentsRejected(msgspec.Struct, frozen=True, tag=True):
    """The stored arguments do not fit the function; it was not called."""

    error: JobError


Answer = ReturnedValue | Raised | ResultNotStorable | ArgumentsRejected
"""The messages that end a request."""

Update = CostSettled | Progressed | Annotated | Logged
"""The messages that a function sends while it runs."""

MessageBody = Ready | NotReady | Update | Answer


class ChildMessage(msgspec.Struct, frozen=True):
    """A message of a child, and the attempt that it is about: the child may already run another one."""

    body: MessageBody
    job: str = ""
    fence: int = 0


encode = msgspec.json.encode
decode_message = msgspec.json.Decoder(ChildMessage).decode
decode_request = msgspec.json.Decoder(AttemptRequest).decode
decode_setup = msgspec.json.Decoder(ChildSetup).decode
