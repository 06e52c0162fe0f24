"""Payloads: a task's arguments as JSON, checked against its signature when they are enqueued."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NotRequired, Self, TypedDict

import msgspec

from headgate.errors import USER_CODE_ERRORS, DeclarationError, PayloadError
from headgate.foreign_words import instead_of_option
from headgate.jobs.encoded import is_encoded
from headgate.limits.argument_fields import ArgumentFields
from headgate.tasks.annotations import annotations_of
from headgate.tasks.codec import NO_CODECS, Codecs
from headgate.tasks.leading import results_in
from headgate.tasks.options import EnqueueOptions, Upgrade
from headgate.tasks.values import (
    MAX_DEPTH,
    decoder,
    equal,
    first_difference,
    is_too_deep,
    shown,
    to_json,
    to_sorted_json,
    unwritable_part,
)

MAX_PAYLOAD = 256 * 1024
"""The maximum of JSON bytes for one job's arguments, or for its result."""

_ABSENT = msgspec.UNSET
_LATER = object()
_by_name = msgspec.structs.asdict

_MISFIT = re.compile(r"(?P<what>.*) - at `(?:key in )?\$\.?(?P<path>[^`]*)`", re.DOTALL)
"""The message of msgspec for a value that does not match its type."""

_WITHOUT_VALUES = ("Expected `", "Object missing required field", "Object contains unknown field")
"""How those messages of msgspec begin that have no values in them."""


class ResultUnknown(DeclarationError):
    """An argument that is a result is read before its job starts."""


class KnownArguments(dict[str, Any]):
    """The arguments of a call that are known at its enqueue; to read one that is a result raises ResultUnknown."""

    def __init__(self, known: Mapping[str, Any], later: frozenset[str]) -> None:
        super().__init__({name: value for name, value in known.items() if name not in later})
        self._later = later

    def __missing__(self, name: str) -> Any:
        if name not in self._later:
            raise KeyError(name)
        raise ResultUnknown(
            f"argument {name!r} is result_of(…), which is known only when the job starts; the key, cost or owner of a "
            "limit needs it before"
        )

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._later else super().get(name, default)


class PayloadType:
    """The arguments of one function: from a call to JSON, and from JSON back to a call.

    Every argument must survive both ways as the type of its annotation; without an annotation, as an equal value. A
    stored payload that does not fit goes through `upgrade`, if there is one. Raises DeclarationError for `*args`,
    `**kwargs`, annotations without a JSON form, and an `upgrade` that is not a plain function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        where: str,
        max_payload: int = MAX_PAYLOAD,
        upgrade: Upgrade | None = None,
        injected: Container[str] = (),
        codecs: Codecs = NO_CODECS,
        hides_values: bool = False,
    ) -> None:
        """Use all arguments except the `injected` ones, which are not part of a job.

        What is stored passes through the `codecs`. With some, or with `hides_values`, no error shows a value.
        """
        self._codecs = codecs
        self._encodes = codecs.encodes
        self._decodes = bool(codecs)
        self.hides_values: bool = hides_values or bool(codecs)
        """Whether errors leave out the values of arguments and results."""
        self._where = where
        self._arguments_text = f"the payload of {where}"
        self._result_text = f"what {where} returned"
        self.max_payload: int = max_payload
        """The maximum of JSON bytes for a job's arguments, or for its result."""
        self._upgrade = upgrade
        if upgrade is not None and (not callable(upgrade) or inspect.iscoroutinefunction(upgrade)):
            raise DeclarationError(f"upgrade= of {where} is {upgrade!r}; pass a plain function from dict to dict")
        parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in injected]
        hints = annotations_of(function, where)
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DeclarationError(
                    f"{where} takes {parameter}; a job's arguments are stored by name, so declare each of them"
                )
        self.parameters: tuple[str, ...] = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self._positional_only = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY)
        self.defaults: dict[str, Any] = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self.required: tuple[str, ...] = tuple(name for name in self.parameters if name in self._required)
        self._names = frozenset(self.parameters)
        types = {name: hints.get(name, Any) for name in self.parameters}
        self.fields: ArgumentFields = ArgumentFields(types)
        """The names and types of the arguments, for key templates."""
        # Without an annotation, JSON may have changed a value's type, so these arguments must keep the type they had.
        self._untyped = tuple(name for name, kind in types.items() if kind in (Any, object))
        # Text and numbers cannot be nested.
        self._may_be_deep = any(kind not in _FLAT for kind in types.values())
        self._decode, self._read_back = self._make_decoders(types)
        self._result, self._plain_result = _result_decoder(hints.get("return", Any))

    def _make_decoders(self, types: Mapping[str, Any]) -> tuple[Callable[[str | bytes], Any], Callable[[bytes], Any]]:
        """Return the decoder of stored arguments, and that of new ones: to a dict, which compares at once."""
        for name, kind in types.items():
            try:
                decoder(kind)
            except (TypeError, ValueError, NameError) as error:
                hint = "; what handlers are given, as a session, is declared with @app.resource before the task"
                cause = f"{error}{hint if isinstance(kind, type) else ''}"
                raise DeclarationError(f"argument {name!r} of {self._where} cannot be stored: {cause}") from None
        kinds = {name: Any if kind is object else kind for name, kind in types.items()}
        self.kinds: dict[str, Any] = kinds
        """The types of the arguments by name; Any without an annotation."""
        fields: list[Any] = [
            (name, kind) if name in self._required else (name, kind | msgspec.UnsetType, _ABSENT)
            for name, kind in kinds.items()
        ]
        # An unknown argument may be one that was renamed: dropping it would lose it.
        stored = msgspec.defstruct("Payload", fields, kw_only=True, gc=False, forbid_unknown_fields=True)
        given = {name: kind if name in self._required else NotRequired[kind] for name, kind in kinds.items()}
        return decoder(stored).decode, decoder(TypedDict("Payload", given)).decode  # type: ignore[operator]

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_declared: bool = False, is_stored: bool = True
    ) -> tuple[str, dict[str, Any]]:
        """Return a call as it is stored, and its arguments by name, as the handler gets them, with the defaults.

        One that `is_declared`, by a schedule, is the same text in all processes, although a set has an order of its own
        in each. One that is not `is_stored`, but for one attempt, may be of any size: it may hold results of jobs.

        Raises TypeError for arguments that do not fit the signature, PayloadError for values without a JSON form, and
        if a codec fails.
        """
        given = self.bind(args, kwargs)
        try:
            payload = to_sorted_json(given) if is_declared else to_json(given)
        except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
            raise self._unwritable_argument(given, error) from None
        if is_stored and len(payload) > self.max_payload:
            raise PayloadError(
                f"{self._where}: the arguments take {len(payload)} bytes as JSON, more than {self.max_payload}; "
                "store the data elsewhere and pass a reference, or raise max_payload"
            )
        if self._may_be_deep and is_too_deep(payload):
            raise PayloadError(f"the arguments of {self._where} are nested too deeply, over {MAX_DEPTH} levels")
        try:
            back = self._read_back(payload)
        except USER_CODE_ERRORS as error:  # here too
            raise self._mismatch(error) from None
        if self._untyped or not equal(given, back):
            self.require_survival(given, back)
        stored = self._codecs.encode(payload, self._arguments_text) if self._encodes else payload.decode()
        return stored, self.defaults | back if self.defaults else back

    def encode_part(
        self, given: Mapping[str, Any], later: frozenset[str], *, is_declared: bool = False
    ) -> tuple[str, KnownArguments]:
        """As `encode`, by name and without the arguments `later`, which are added when the job starts."""
        kinds = {name: kind for name, kind in self.kinds.items() if name in given}
        part = copy.copy(self)
        part._read_back = decoder(TypedDict("Payload", kinds)).decode  # type: ignore[operator]
        part._positional_only, part._required = (), frozenset(kinds)
        payload, arguments = part.encode((), given, is_declared=is_declared)
        return payload, KnownArguments(arguments, later)

    def decode_part(self, payload: str, later: Iterable[str]) -> KnownArguments:
        """Return a stored call's arguments by name, with defaults, but without those `later`. Raises PayloadError.

        The task's own upgrade gets an object in place of each that comes later, and may give it another name.
        """
        unknown, upgrade, part = set(later), self._upgrade, copy.copy(self)

        def decode(text: str | bytes) -> Any:
            part.defaults = {name: value for name, value in self.defaults.items() if name not in unknown}
            kinds = {name: kind for name, kind in self.kinds.items() if name not in unknown}
            return part._make_decoders(kinds)[0](text)

        def upgraded(stored: dict[str, Any]) -> dict[str, Any]:
            assert upgrade is not None
            current = upgrade({**dict.fromkeys(unknown, _LATER), **stored})
            unknown.update([name for name, value in current.items() if value is _LATER])
            return {name: value for name, value in current.items() if name not in unknown}

        part._decode, part._positional_only = decode, ()
        part._upgrade = None if upgrade is None else upgraded
        return KnownArguments(part.arguments(payload), frozenset(unknown))

    def decode(self, payload: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the stored call, as positional and named arguments.

        Raises PayloadError if it no longer fits, or cannot be decoded.
        """
        if self._decodes:
            payload = self._codecs.decode(payload, self._arguments_text)
        try:
            decoded = self._decode(payload)
        except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
            decoded = self._upgraded(payload, error)
        return self._as_call(decoded)

    def parse(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments written as a JSON object, as a call. Raises PayloadError, which names the argument."""
        try:
            given = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise PayloadError(f"the arguments of {self._where} are not JSON: {error}") from None
        except RecursionError:
            raise PayloadError(
                f"the arguments of {self._where} are nested too deeply, over {MAX_DEPTH} levels"
            ) from None
        if not isinstance(given, dict):
            raise PayloadError(f"the arguments of {self._where} must be a JSON object, not {self._shown(given)}")
        known = ", ".join(self.parameters) or "none"
        for name in given:
            if name not in self._names:
                raise PayloadError(f"{self._where} has no argument {name!r}; it has: {known}")
        missing = ", ".join(repr(name) for name in self.parameters if name in self._required - given.keys())
        if missing:
            raise PayloadError(f"{self._where} lacks argument {missing}")
        try:
            return self._as_call(self._decode(text))
        except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
            raise self._mismatch(error) from None

    def _as_call(self, decoded: Any) -> tuple[list[Any], dict[str, Any]]:
        values = _by_name(decoded)
        for name in self.defaults:
            if values[name] is _ABSENT:
                del values[name]
        return self.as_call(values) if self._positional_only else ([], values)

    def as_call(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments by name as a call, positional and named; checks nothing."""
        named = dict(arguments)
        positional = [named.pop(name) for name in self._positional_only if name in named]
        return positional, named

    def by_name(self, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call of `decode` or `as_call` as arguments by name."""
        return {**dict(zip(self._positional_only, positional, strict=False)), **named}

    def _upgraded(self, payload: str, misfit: BaseException) -> Any:
        """Return the arguments that the task's own upgrade makes of a payload that does not fit."""
        if is_encoded(payload):
            # Without codecs, only a payload that does not fit is looked at.
            self._codecs.decode(payload, self._arguments_text)
        if self._upgrade is None:
            raise PayloadError(
                f"the stored arguments of {self._where} do not fit its signature: {self._message(misfit)}; "
                "after a fix, `headgate jobs retry` runs the job again"
            ) from None
        try:
            stored = msgspec.json.decode(payload)
            if not isinstance(stored, dict):
                raise TypeError(f"the stored arguments are not a JSON object: {self._shown(stored)}")
            return self._decode(to_json(self._upgrade(stored)))
        except USER_CODE_ERRORS as error:
            raise PayloadError(
                f"the stored arguments of {self._where} do not fit its signature ({self._message(misfit)}), and its "
                f"upgrade does not help: {type(error).__name__}: {self._message(error)}; after a fix, "
                "`headgate jobs retry` runs the job again"
            ) from (None if self.hides_values else error)

    def for_child(self, payload: str) -> str:
        """Return a stored payload as JSON, as this release writes it if the task has an upgrade. Raises PayloadError.

        A child process gets it in clear: it reads what its node has decoded.
        """
        if self._upgrade is not None:
            positional, named = self.decode(payload)
            payload = self.encode(tuple(positional), named, is_stored=False)[0]
        return self._codecs.decode(payload, self._arguments_text)

    def in_clear(self) -> Self:
        """Return the same without the codecs, for a child process; no error shows a value if none does here."""
        other = copy.copy(self)
        other._codecs, other._encodes, other._decodes = NO_CODECS, False, False
        return other

    def arguments(self, payload: str) -> dict[str, Any]:
        """Return a stored call's arguments by name, with defaults. Raises PayloadError if it no longer fits."""
        positional, named = self.decode(payload)
        return {**self.defaults, **self.by_name(positional, named)}

    def require_run(self, result: Any) -> None:
        """Raise PayloadError for a result that is code which has not run: a coroutine or a generator."""
        if isinstance(result, CoroutineType):
            result.close()  # the error says what Python would warn of
            raise PayloadError(
                f"{self._where} returned a coroutine, whose code has not run; await it: a decorator or hook around an "
                "async def must be an async def, too"
            )
        if isinstance(result, (GeneratorType, AsyncGeneratorType)):
            raise PayloadError(
                f"{self._where} returned a generator, whose code has not run; return a list of its items"
            )

    def encode_result(self, result: Any) -> str:
        """Return a handler's result as it is stored.

        Raises PayloadError if it has no JSON form, is too large or of the wrong type, and if a codec fails.
        """
        if result is None:
            return "null"
        try:
            encoded = to_json(result)
        except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
            if isinstance(result, BaseException):
                word = type(result).__name__
                raise PayloadError(f"{self._where} returned {word}(…), an exception; write raise {word}(…)") from None
            path, cause = unwritable_part(result, "it") or ("it", error)
            raise PayloadError(
                f"what {self._where} returned cannot be stored as JSON: {self._at(path, 'it')}{self._message(cause)}"
            ) from None
        if len(encoded) > self.max_payload:
            raise PayloadError(
                f"what {self._where} returned takes {len(encoded)} bytes as JSON, more than {self.max_payload}; "
                "store it elsewhere and return a reference, or raise max_payload"
            )
        if type(result) is not self._plain_result:
            self._require_result_survival(result, encoded)
        return self._codecs.encode(encoded, self._result_text) if self._encodes else encoded.decode()

    def stored_result(self, result: str) -> str:
        """Return the JSON of a result, which a child process has written, as it is stored. Raises PayloadError."""
        if result == "null" or not self._encodes:
            return result
        return self._codecs.encode(result.encode(), self._result_text)

    def clear_result(self, result: str) -> str:
        """Return the JSON of a stored result. Raises PayloadError if it cannot be decoded."""
        return self._codecs.decode(result, self._result_text)

    def decode_result(self, result: str) -> Any:
        """Return a stored return value, as the type of the function's annotation.

        Raises PayloadError for one that another release has stored and that does not fit this type, and for one that
        cannot be decoded.
        """
        if result == "null":
            return None
        return self._read_result(self._codecs.decode(result, self._result_text))

    def _read_result(self, encoded: str | bytes) -> Any:
        """Return the result of this JSON. Raises PayloadError if it does not fit its annotation."""
        try:
            return self._result.decode(encoded)
        except USER_CODE_ERRORS as error:  # the code of a model or a class can raise anything
            raise PayloadError(
                f"what {self._where} returned does not fit its annotation: {self._message(error)}"
            ) from None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without defaults. Raises TypeError if they do not fit."""
        if len(args) > len(self._positional):
            raise TypeError(f"{self._where} takes {_arguments(len(self._positional))} but {len(args)} were given")
        given = dict(zip(self._positional, args))  # noqa: B905  # `strict=` costs a tenth of an encoding
        if kwargs:
            for name, value in kwargs.items():
                if name not in self._names or name in self._positional_only:
                    if name in EnqueueOptions.__annotations__:
                        raise TypeError(self._option_passed_as_argument(args, kwargs))
                    own = instead_of_option(name.lstrip("_"), value, EnqueueOptions.__annotations__) or ""
                    is_option = own.partition("=")[0].isidentifier() and not self.hides_values
                    raise TypeError(
                        f"{self._where} has no argument {name!r}; it has: {', '.join(self.parameters) or 'none'}"
                        + (f". As an option of enqueueing, write {own}: task.using(…).enqueue(…)" if is_option else "")
                    )
                if name in given:
                    raise TypeError(f"{self._where} got argument {name!r} twice")
                given[name] = value
        if len(given) < len(self.parameters) and not self._required <= given.keys():
            missing = ", ".join(repr(name) for name in self.parameters if name in self._required - given.keys())
            hint = (
                "; no job gets a context, current_job() returns it" if self.parameters[0] in ("ctx", "context") else ""
            )
            raise TypeError(f"{self._where} lacks argument {missing}{hint}")
        return given

    def _option_passed_as_argument(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return how options are passed, with the corrected call."""
        known = EnqueueOptions.__annotations__.keys() - self._names
        options = {name: value for name, value in kwargs.items() if name in known}
        rest = {name: value for name, value in kwargs.items() if name not in options}
        using = ", ".join(f"{name}={value!r:.40}" for name, value in options.items())
        given = [f"{value!r:.40}" for value in args] + [f"{name}={value!r:.40}" for name, value in rest.items()]
        if self.hides_values:
            given = ["…"]
        return (
            f"{self._where} has no argument {next(iter(options))!r}, which is an enqueue option; write "
            f".using({using}).enqueue({', '.join(given)})"
        )

    def _unwritable_argument(self, given: Mapping[str, Any], error: BaseException) -> PayloadError:
        """Return an error that names the argument that cannot be stored, and the part of it."""
        for name, value in given.items():
            if results_in(value):
                return PayloadError(
                    f"argument {name!r} of {self._where} is result_of(…), which is for calls that follow it: enqueue "
                    "the call with chain(…) or batch(…)"
                )
            found = unwritable_part(value, name)
            if found is not None:
                path, cause = found
                return PayloadError(
                    f"argument {name!r} of {self._where} cannot be stored as JSON: "
                    f"{self._at(path, name)}{self._message(cause)}"
                )
        return PayloadError(f"the arguments of {self._where} cannot be stored as JSON: {self._message(error)}")

    def _mismatch(self, error: BaseException) -> PayloadError:
        """Return an error that names the argument that does not fit its annotation, and the part of it."""
        found = _MISFIT.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
        if found is None:
            return PayloadError(f"an argument of {self._where} does not fit its annotation: {self._message(error)}")
        name = re.split(r"[.\[]", found["path"], maxsplit=1)[0]
        at = "" if found["path"] == name else f"at {found['path']}: "
        what = found["what"] if self._is_harmless(error) else type(error).__name__
        return PayloadError(f"argument {name!r} of {self._where} does not fit its annotation: {at}{what}", name)

    def require_survival(self, given: Mapping[str, Any], back: Mapping[str, Any], *, loose: bool = False) -> None:
        """Raise PayloadError for an argument that would not arrive as it was passed; `loose`: but for tuples."""
        for name, value in given.items():
            difference = first_difference(value, back[name], loose=loose, path=name)
            if difference is not None:
                path, before, after = difference
            elif not loose and name in self._untyped and type(value) is not type(back[name]):
                path, before, after = name, value, back[name]
            else:
                continue
            advice = "; annotate its type or pass something that JSON has"
            change = self._change(path, name, before, after, advice)
            raise PayloadError(f"argument {name!r} of {self._where} {change}", name)

    def _require_result_survival(self, result: Any, encoded: bytes) -> None:
        """Raise PayloadError for a return value that a caller would not get as it is annotated."""
        if is_too_deep(encoded):
            raise PayloadError(f"what {self._where} returned is nested too deeply, over {MAX_DEPTH} levels")
        if self._plain_result is Any:
            return
        difference = first_difference(result, self._read_result(encoded), loose=True, path="it")
        if difference is not None:
            path, before, after = difference
            raise PayloadError(f"what {self._where} returned {self._change(path, 'it', before, after)}")

    # ------------------------------------------------------------------------------------------ words of errors

    def _shown(self, value: Any) -> str:
        """Return a value for an error message; only its type if values are hidden."""
        return f"a {type(value).__qualname__}" if self.hides_values else shown(value)

    def _change(self, path: str, name: str, before: Any, after: Any, advice: str = "") -> str:
        """Return how an argument or a result has changed."""
        kind = type(after).__qualname__
        if type(before) is not type(after) and type(before).__qualname__ == kind:
            advice = (
                f" of another class {kind}, that of the annotation; if {kind} was declared again, as by a cell of a "
                "notebook, declare the task again, too"
            )
        change = f"{self._shown(before)} comes back as {self._shown(after)}"
        return f"does not survive JSON: {self._at(path, name)}{change}{advice}"

    def _at(self, path: str, name: str) -> str:
        """Return where in an argument the problem is; empty if it is the argument itself, or the path has values."""
        return "" if path == name or self.hides_values else f"at {path}: "

    def _message(self, error: BaseException) -> str:
        if isinstance(error, RecursionError):
            return "it is nested too deeply"
        if not self._is_harmless(error):
            return type(error).__name__
        try:
            return str(error)
        except Exception:
            # The error's own code may fail, too.
            return type(error).__name__

    def _is_harmless(self, error: BaseException) -> bool:
        """Return whether the text of an error may be shown: whether values may be, or it has only types and names."""
        return not self.hides_values or (
            isinstance(error, msgspec.ValidationError) and str(error).startswith(_WITHOUT_VALUES)
        )


_FLAT = (str, int, float, bool, bytes, type(None))


def _result_decoder(kind: Any) -> tuple[msgspec.json.Decoder[Any], Any]:
    """Return the decoder of results, and the type that needs no check; Any if nothing is checked."""
    # A return annotation without a JSON form is ignored: results come back as plain JSON values.
    if kind in (Any, object, None, type(None)):
        return msgspec.json.Decoder(Any), Any
    try:
        return decoder(kind), kind if kind in (str, int, bool) else None
    except (TypeError, ValueError, NameError):
        return msgspec.json.Decoder(Any), Any


def _arguments(count: int) -> str:
    return "1 positional argument" if count == 1 else f"{count} positional arguments"
