"""Annotations: what a handler notes about its job, as names with plain values; they stay over all attempts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from headgate.arguments import is_utf8

Annotation = str | int | float | bool
"""The value of an annotation."""

MOST_ANNOTATIONS = 32
"""How many annotations a job may have."""

MAX_ANNOTATIONS = 4096
"""Bytes of all annotations of a job as JSON; they are read with every list of jobs."""

_NAME = re.compile(r"[\w.:/@+#-]{1,64}")


def annotated(before: Mapping[str, Annotation], changes: Mapping[str, Any]) -> dict[str, Annotation]:
    """Return annotations with the changes; None removes one. Raises ValueError for what cannot be stored."""
    for name, value in changes.items():
        _require_storable(name, value)
    after = applied(before, changes)
    if len(after) > MOST_ANNOTATIONS:
        raise ValueError(
            f"a job has at most {MOST_ANNOTATIONS} annotations, and with {list(changes)[-1]!r} it would have "
            f"{len(after)}; remove one with annotate(name=None), or return what is more as the result"
        )
    size = len(msgspec.json.encode(after))
    if size > MAX_ANNOTATIONS:
        raise ValueError(
            f"annotations of {size} bytes are more than {MAX_ANNOTATIONS}; the longest is "
            f"{max(after, key=lambda name: len(str(after[name])))!r}: return what is large as the result of the job"
        )
    return after


def applied(before: Mapping[str, Annotation], changes: Mapping[str, Any]) -> dict[str, Annotation]:
    """Return annotations with changes that were checked."""
    return {name: value for name, value in {**before, **changes}.items() if value is not None}


def plain(value: Any) -> Any:
    """Return text or a number of a subclass as a plain one, as it is read back: numpy has such numbers."""
    match value:
        case bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
    return value


def _require_storable(name: str, value: Any) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of annotation {name!r:.80} must be 1 to 64 letters, digits and _ . : / @ + # -")
    match value:
        case str():
            if "\x00" in value or not is_utf8(value):
                raise ValueError(
                    f"annotation {name!r} is text that cannot be stored: it has NUL or half a surrogate pair"
                )
        case bool() | None:
            pass
        case int():
            if not -(1 << 63) <= value < 1 << 63:
                raise ValueError(f"annotation {name!r} is a number beyond 64 bits; write str({name})")
        case float():
            if not isfinite(value):
                raise ValueError(
                    f"annotation {name!r} is {value}, which has no JSON form; write a finite number or None"
                )
        case _:
            raise ValueError(
                f"annotation {name!r} is a {type(value).__name__}, not text, a number, True, False or None (to remove "
                f"it); write str({name}), or return what has parts as the result of the job"
            )
