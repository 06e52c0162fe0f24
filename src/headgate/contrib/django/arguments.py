"""Converts the arguments of a Django task, positional and named, to those of a job, which all have names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

POSITIONAL = "django.positional"
"""The header with the number of a job's arguments that were passed without a name."""


class Arguments(NamedTuple):
    """The arguments of a call."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Parameters:
    """The parameters of a Django task, without its context.

    Its arguments are plain JSON values, whatever their annotations, as Django requires. A function with `*args` or
    `**kwargs` is stored with two arguments of these names.
    """

    def __init__(self, function: Callable[..., Any], *, takes_context: bool) -> None:
        given = list(inspect.signature(function).parameters.values())[takes_context:]
        self._is_open = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in given)
        bare = [each.replace(annotation=each.empty) for each in given]
        if self._is_open:
            bare = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("args", "kwargs")]
        self.signature = inspect.Signature(bare)
        self._names = [each.name for each in bare if each.kind is not each.KEYWORD_ONLY]

    def to_job(self, call: Arguments) -> tuple[Arguments, dict[str, str]]:
        """Return a call as it is enqueued, with a header for its positional arguments."""
        if self._is_open:
            return Arguments((), {"args": list(call.args), "kwargs": dict(call.kwargs)}), {}
        return call, {POSITIONAL: str(len(call.args))} if call.args else {}

    def of_job(self, named: Mapping[str, Any], headers: Mapping[str, str]) -> Arguments:
        """Return the call that was enqueued, from the arguments of its job by name."""
        if self._is_open:
            return Arguments(named["args"], named["kwargs"])
        first = self._names[: int(headers.get(POSITIONAL, "0"))]
        rest = {name: value for name, value in named.items() if name not in first}
        return Arguments([named[name] for name in first if name in named], rest)

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of a job's function, by name."""
        return {**dict(zip(self._names, args, strict=False)), **kwargs}
