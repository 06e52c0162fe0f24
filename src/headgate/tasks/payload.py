"""Payloads: a task's arguments as JSON, checked against its signature when they are enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from headgate.errors import DeclarationError, PayloadError

MAX_PAYLOAD = 256 * 1024
"""Bytes of JSON that one job's arguments, or its result, may take."""

_encoder = msgspec.json.Encoder()


class PayloadType:
    """The arguments of one function: from a call to JSON, and from JSON back to a call.

    Every argument has to survive the way there and back as the type it is annotated with; without an annotation, as an
    equal value. Raises DeclarationError for `*args`, `**kwargs` and annotations that have no JSON form.
    """

    def __init__(self, function: Callable[..., Any], where: str, max_payload: int = MAX_PAYLOAD) -> None:
        self._where = where
        self._max_payload = max_payload
        parameters = list(inspect.signature(function).parameters.values())
        hints = _hints(function, where)
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DeclarationError(
                    f"{where} takes {parameter}; a job's arguments are stored by name, so declare each of them"
                )
        self.parameters = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self._positional_only = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._names = frozenset(self.parameters)
        types = {name: hints.get(name, Any) for name in self.parameters}
        # Without a type nothing tells what JSON made of a value, so these are compared after the way back.
        self._untyped = tuple(name for name, kind in types.items() if kind in (Any, object))
        self._decoder = self._make_decoder(types)
        self._result = _result_decoder(hints.get("return", Any))

    def _make_decoder(self, types: Mapping[str, Any]) -> msgspec.json.Decoder[Any]:
        for name, kind in types.items():
            try:
                msgspec.json.Decoder(kind)
            except (TypeError, ValueError, NameError) as error:
                raise DeclarationError(f"argument {name!r} of {self._where} cannot be stored: {error}") from None
        fields: list[Any] = [
            (name, kind) if name in self._required else (name, kind | msgspec.UnsetType, msgspec.UNSET)
            for name, kind in ((n, Any if k is object else k) for n, k in types.items())
        ]
        return msgspec.json.Decoder(msgspec.defstruct("Payload", fields, kw_only=True, gc=False))

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A call as JSON, and its arguments by name with the defaults filled in.

        Raises TypeError for arguments that do not fit the signature, PayloadError for values that JSON cannot carry.
        """
        given = self._bind(args, kwargs)
        try:
            payload = _encoder.encode(given)
            decoded = self._decoder.decode(payload)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise self._explain(given, error) from None
        if len(payload) > self._max_payload:
            raise PayloadError(
                f"the arguments of {self._where} take {len(payload)} bytes of JSON, more than {self._max_payload}; "
                "store the data elsewhere and pass a reference"
            )
        for name in self._untyped:
            if name in given and not _same(given[name], getattr(decoded, name)):
                raise PayloadError(
                    f"argument {name!r} of {self._where} does not survive JSON: {given[name]!r:.80} comes back as "
                    f"{getattr(decoded, name)!r:.80}; annotate its type or pass something that JSON has"
                )
        return payload.decode(), {**self._defaults, **given} if self._defaults else given

    def decode(self, payload: str) -> tuple[list[Any], dict[str, Any]]:
        """The stored call, as positional and named arguments. Raises PayloadError if it no longer fits."""
        try:
            decoded = self._decoder.decode(payload)
        except (ValueError, RecursionError) as error:
            raise PayloadError(
                f"the stored arguments of {self._where} do not fit its signature: {error}; "
                "after a fix, `headgate jobs retry` runs the job again"
            ) from None
        unset = msgspec.UNSET
        values = {name: value for name in self.parameters if (value := getattr(decoded, name)) is not unset}
        positional = [values.pop(name) for name in self._positional_only if name in values]
        return positional, values

    def arguments(self, payload: str) -> dict[str, Any]:
        """A stored call's arguments by name, with the defaults filled in. Raises PayloadError if it no longer fits."""
        positional, named = self.decode(payload)
        return {**self._defaults, **dict(zip(self._positional_only, positional, strict=False)), **named}

    def encode_result(self, result: Any) -> str:
        """A handler's return value as JSON. Raises PayloadError if it has none or is too large."""
        if result is None:
            return "null"
        try:
            encoded = _encoder.encode(result)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise PayloadError(f"what {self._where} returned cannot be stored as JSON: {error}") from None
        if len(encoded) > self._max_payload:
            raise PayloadError(
                f"what {self._where} returned takes {len(encoded)} bytes of JSON, more than {self._max_payload}; "
                "store it elsewhere and return a reference"
            )
        return encoded.decode()

    def decode_result(self, result: str) -> Any:
        """A stored return value, as the type that the function is annotated with."""
        return self._result.decode(result)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise TypeError(
                f"{self._where} takes {len(self._positional)} positional arguments but {len(args)} were given"
            )
        given = dict(zip(self._positional, args, strict=False))
        if kwargs:
            for name, value in kwargs.items():
                if name not in self._names or name in self._positional_only:
                    raise TypeError(
                        f"{self._where} has no argument {name!r}; it has: {', '.join(self.parameters) or 'none'}"
                    )
                if name in given:
                    raise TypeError(f"{self._where} got argument {name!r} twice")
                given[name] = value
        if not self._required <= given.keys():
            missing = ", ".join(repr(name) for name in self.parameters if name in self._required - given.keys())
            raise TypeError(f"{self._where} misses argument {missing}")
        return given

    def _explain(self, given: Mapping[str, Any], error: Exception) -> PayloadError:
        """Say which argument it is that cannot be stored."""
        for name, value in given.items():
            try:
                _encoder.encode(value)
            except (TypeError, ValueError, RecursionError, OverflowError) as cause:
                return PayloadError(f"argument {name!r} of {self._where} cannot be stored as JSON: {_said(cause)}")
        return PayloadError(f"an argument of {self._where} does not fit its annotation: {_said(error)}")


def _said(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _same(before: Any, after: Any) -> bool:
    try:
        return type(before) is type(after) and bool(before == after)
    except Exception:
        # A value that cannot even be compared has no business in a job.
        return False


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"an annotation of {where} cannot be resolved: {error}; import the name at the top of its module"
        ) from None


def _result_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind)
    except (TypeError, ValueError):
        # A return annotation is a courtesy to readers: without a JSON form, results come back as plain JSON values.
        return msgspec.json.Decoder(Any)
