"""What a node and its child processes say to each other: structs as JSON, one a line."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import ClaimedJob, JobError


class ChildSetup(msgspec.Struct, frozen=True):
    """How a child becomes like its parent: its arguments and main module; and the module of the first task."""

    arguments: list[str]
    main_name: str | None
    main_path: str | None
    module: str


class AttemptRequest(msgspec.Struct, frozen=True):
    """Run one attempt of the job."""

    module: str
    function: str
    job: ClaimedJob
    limits: tuple[str, ...]
    max_payload: int
    log_level: int | None = None
    """The lowest level of log lines that are kept; None: none are."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child has imported what it needs."""


class ImportFailed(msgspec.Struct, frozen=True, tag=True):
    """The child could not import the module; it ends."""

    error: JobError


class CostSettled(msgspec.Struct, frozen=True, tag=True):
    """The function settles the cost of its start; it goes on."""

    limit: str
    actual: int


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """The function says how far it is; it goes on."""

    fraction: float
    message: str | None


class Logged(msgspec.Struct, frozen=True, tag=True):
    """The function has logged a line; it goes on."""

    level: int
    logger: str
    message: str


class ReturnedValue(msgspec.Struct, frozen=True, tag=True):
    """The function returned this, as JSON."""

    result: str


class ErrorClass(msgspec.Struct, frozen=True):
    """What an exception is: its class and the bases of it as `module:name`, nearest first; its text; its members."""

    names: tuple[str, ...]
    message: str
    members: tuple[ErrorClass, ...] = ()


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The function raised."""

    error: JobError
    kind: ErrorClass


class ResultNotStorable(msgspec.Struct, frozen=True, tag=True):
    """The function returned what cannot be stored."""

    error: JobError


class ArgumentsRejected(msgspec.Struct, frozen=True, tag=True):
    """The stored arguments do not fit the function; it was not called."""

    error: JobError


class SnoozeRequested(msgspec.Struct, frozen=True, tag=True):
    """The function asks to be run again after `delay` microseconds."""

    delay: int


class RateLimitReached(msgspec.Struct, frozen=True, tag=True):
    """The function was told by its callee to wait `retry_after` microseconds."""

    retry_after: int


Answer = ReturnedValue | Raised | ResultNotStorable | ArgumentsRejected | SnoozeRequested | RateLimitReached
"""How a request ends."""

Aside = CostSettled | Progressed | Logged
"""What a function says while it goes on."""

Word = Ready | ImportFailed | Aside | Answer


class ChildMessage(msgspec.Struct, frozen=True):
    """A word of a child, and the attempt that it is about: by then, the child may be at work on another."""

    word: Word
    job: str = ""
    fence: int = 0


encode = msgspec.json.encode
decode_said = msgspec.json.Decoder(ChildMessage).decode
decode_request = msgspec.json.Decoder(AttemptRequest).decode
decode_setting = msgspec.json.Decoder(ChildSetup).decode
