"""Gated calls: the line of a call of another framework's task, computed from its arguments."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from headgate.errors import DeclarationError, PayloadError
from headgate.limits.argument_fields import ArgumentFields, read_types
from headgate.limits.bucket_store import Bucket
from headgate.limits.key import SHARED, Header, bucket_key, compile_key
from headgate.limits.limit import Limit, changed
from headgate.limits.redis.message_lines import BucketLine, Limits
from headgate.limits.redis.script import numbers
from headgate.limits.rule import RATE

logger = logging.getLogger("headgate.gates")


def single_limit(where: str, *declared: object) -> Limit | None:
    """Return the limit of a task, from all places where one can be declared; None without any.

    Raises DeclarationError for several limits, and for a value that is not a limit.
    """
    found = [each for each in declared if each is not None]
    if not found:
        return None
    if len(found) > 1 or isinstance(found[0], (list, tuple)):
        raise DeclarationError(f"{where} has several limits: a gate keeps one for a task; declare the tightest of them")
    if not isinstance(found[0], Limit):
        raise DeclarationError(f"limit={found[0]!r} of {where} is not a limit; write StrictRate('15/m', …)")
    return found[0]


def declare(limits: dict[str, Limit], task: str, limit: Limit) -> None:
    """Store the limit of a task. Raises DeclarationError if it has a different one."""
    if limits.setdefault(task, limit) != limit:
        single_limit(repr(task), limits[task], limit)


class GatedTask:
    """A task of another framework, with its limit. Raises DeclarationError for a limit that a gate cannot enforce.

    `call` is the task's function; its signature names the arguments.
    """

    def __init__(self, task: str, limit: Limit, call: Callable[..., object]) -> None:
        self.limit = limit
        self.name = limit.name or f"{task}:{limit.rule.kind}"
        self._where = f"limit {self.name!r} of {task}"
        self._signature = inspect.signature(call)
        fields = ArgumentFields(read_types(call))
        self._key = compile_key(limit.key, list(self._signature.parameters), self._where, fields)
        self._has_warned = False
        self._check()

    def line(self, args: Sequence[object], kwargs: Mapping[str, object]) -> BucketLine | None:
        """Return the line of a call; None if it is not limited. Raises PayloadError as its options say."""
        try:
            # The framework may add arguments when it runs the call.
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError:
            # The call will fail when it runs, with a better message.
            return None
        bound.apply_defaults()
        try:
            key = bucket_key(self._key(bound.arguments, {}))
        except Exception as error:
            reason = f"its key could not be computed: {type(error).__name__}: {error}"
            if self.limit.on_key_error == "fail":
                raise PayloadError(f"{self._where}: {reason}; nothing was published") from error
            self._warn(reason)
            return None
        if not key and self.limit.key is not None:
            if self.limit.on_missing_key == "fail":
                raise PayloadError(f"{self._where}: its key is empty; nothing was published")
            if self.limit.on_missing_key == "run":
                self._warn("its key is empty")
                return None
            key = SHARED
        return self.line_of_key(key)

    def line_of_key(self, key: str) -> BucketLine:
        assert isinstance(self.limit.cost, int)
        return BucketLine(Bucket(self.name, key, self.limit.rule), self.limit.cost)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: %s; such calls run without it", self._where, reason)

    def _check(self) -> None:
        limit = self.limit
        if limit.rule.family != RATE or limit.rule.adapts:
            kept = "a gate keeps rates and windows (RateLimit, StrictRate, FixedWindow, SlidingWindow)"
            raise DeclarationError(f"{self._where}: {kept}, not {limit.rule.describe()}")
        numbers(limit.rule)
        if isinstance(limit.key, (Header, tuple)):
            instead = 'write a template over the arguments, such as "{tenant_id}", or a callable'
            raise DeclarationError(f"{self._where}: key={limit.key!r} is only for jobs of Headgate; {instead}")
        if not isinstance(limit.cost, int):
            raise DeclarationError(f"{self._where}: cost={limit.cost!r} must be a number; a gate knows no other cost")
        plain = changed(limit, on_limit=None) if limit.on_limit == "wait" else limit
        for option in ("on_limit", "max_wait", "store", "sharers", "charge_retries", "per_call"):
            if getattr(plain, option) != getattr(Limit, option):
                raise DeclarationError(f"{self._where}: {option}= is for jobs of Headgate; a gate lets calls wait")


class GatedTasks:
    """The tasks of a program that have a limit. `declared` returns the limit and the function of a task, or None."""

    def __init__(
        self, declared: Callable[[str], tuple[Limit, Callable[..., object]] | None], names: Callable[[], Iterable[str]]
    ) -> None:
        self._declared = declared
        self._names = names
        self._known: dict[str, GatedTask] = {}

    def of(self, name: str) -> GatedTask | None:
        """Return the task of that name; None without a limit. Raises DeclarationError for unlike limits of one name."""
        if (known := self._known.get(name)) is None and (declared := self._declared(name)) is not None:
            known, limit = GatedTask(name, *declared), declared[0]
            for other in list(self._names()) if limit.name else ():
                theirs, _ = self._declared(other) or declared
                if theirs.name == limit.name and (theirs.rule, theirs.cost) != (limit.rule, limit.cost):
                    two = (f"{type(one).__name__} {one.rule.describe()}, cost={one.cost}" for one in (limit, theirs))
                    told = f"limit {limit.name!r} of {name} and {other} is {' and '.join(two)}"
                    raise DeclarationError(f"{told}: they share a line; declare one rule and cost, or another name")
            self._known[name] = known
        return known

    def line(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> BucketLine | None:
        """Return the line of a call of that task, as `GatedTask.line`."""
        gated = self.of(name)
        return None if gated is None else gated.line(args, kwargs)

    def limits(self) -> Limits:
        """Return the limits that the tasks have, without those that are refused where a call is published."""
        limits: dict[str, Callable[[str], BucketLine]] = {}
        for name in list(self._names()):
            with suppress(DeclarationError):
                if gated := self.of(name):
                    limits[gated.name] = gated.line_of_key
        return limits
