"""The arguments of a Django task, which are positional and named, as those of a job, which all have names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

POSITIONAL = "django.positional"
"""The header that says how many of a job's arguments were passed without a name."""


class Arguments(NamedTuple):
    """How a function was called."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Parameters:
    """What a Django task takes, but for its context.

    Its arguments are plain JSON values, whatever they are annotated with: so Django has it. What takes `*args` or
    `**kwargs` is stored as two arguments of these names.
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
        """A call as it is enqueued, with the headers that tell how it was made."""
        if self._is_open:
            return Arguments((), {"args": list(call.args), "kwargs": dict(call.kwargs)}), {}
        return call, {POSITIONAL: str(len(call.args))} if call.args else {}

    def of_job(self, named: Mapping[str, Any], headers: Mapping[str, str]) -> Arguments:
        """The call that was enqueued, from the arguments of its job by name."""
        if self._is_open:
            return Arguments(named["args"], named["kwargs"])
        first = self._names[: int(headers.get(POSITIONAL, "0"))]
        rest = {name: value for name, value in named.items() if name not in first}
        return Arguments([named[name] for name in first if name in named], rest)

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with which a job's function was called."""
        return {**dict(zip(self._names, args, strict=False)), **kwargs}
