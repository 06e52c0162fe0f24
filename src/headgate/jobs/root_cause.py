"""Root causes: what made an attempt fail, and where in the user's code, read from the text of its error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.jobs.code_owner import owner_of
from headgate.jobs.job import LONGEST_TRACEBACK, JobError

LONGEST_PATTERN = 200
"""Characters of a message pattern."""

UNKNOWN = JobError("unknown error", "")
"""The text for an error that is not stored, or cannot be read."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A line of code that a traceback shows."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RootCause:
    """The type of an error, its message, and the last line of the user's own code that it passed.

    That of many errors has the pattern of their messages: `#` for numbers and ids and `'…'` for quoted values, so that
    errors that differ only in these have the same root cause. `place` is None without a traceback, and if the traceback
    shows no code of the user.
    """

    type: str
    message: str
    place: CodePlace | None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def root_cause(error: JobError) -> RootCause:
    """Return the root cause that a stored error has in common with others: its message is a pattern."""
    found = raised_cause(error)
    return replace(found, message=message_pattern(found.message))


def raised_cause(error: JobError) -> RootCause:
    """Return the root cause of a stored error, with its message as it was raised.

    If its traceback shows the exceptions that it was raised `from`, that is the innermost of them; of an exception
    group, it is the root cause of the first member. Exceptions that were only being handled when it was raised are not
    its cause, and neither is the cancellation by which a timeout ended the code; that shows where the code was. A long
    traceback is cut at its beginning; then what is left of it decides.
    """
    whole = error.traceback or ""
    if len(whole) >= LONGEST_TRACEBACK:
        # The first line may be cut in the middle.
        whole = whole.partition("\n")[2]
    inner, is_inner = whole, False
    while True:
        inner, has_cause = _innermost(inner)
        member = _first_member(inner)
        is_inner = is_inner or has_cause or member is not None
        if member is None:
            break
        inner = member
    kind, message = (_headline(inner) if is_inner else None) or (error.type, error.message)
    return RootCause(kind, message, own_place(inner, whole))


def message_pattern(message: str) -> str:
    """Return a message with placeholders for its numbers, ids and quoted values, in one line."""
    text = _QUOTED.sub("'…'", " ".join(message.split()))
    return _VALUE.sub("#", _HEXADECIMAL.sub("#", text))[:LONGEST_PATTERN]


_QUOTED = re.compile(
    r"""
    (?<!\w)(?:
        '(?:[^'\\]|\\.|'(?=\w))*(?:'|\Z)
      | "(?:[^"\\]|\\.)*(?:"|\Z)
    )
    """,
    re.VERBOSE,
)
"""A quoted value; the end of a text that is cut may lack its last quote. An apostrophe in a word is not a quote."""

_HEXADECIMAL = re.compile(r"\b(?:[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{8,})\b")

_VALUE = re.compile(r"\b\w*\d\w*(?:[.:-]\w*\d\w*)*")
"""Words with a digit in them, such as numbers, ids, addresses and times."""


# ------------------------------------------------------------------------------------------------------- chains

_LINK = re.compile(
    r"\n\n(?:The above exception was the direct (cause) of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n"
)
"""The text that Python prints between two chained exceptions."""


def _innermost(text: str) -> tuple[str, bool]:
    """Return the text of the innermost exception that the last one was raised from, and whether there is one."""
    # Texts of exceptions, and between each two of them "cause", or None for one that was being handled.
    parts: Sequence[str | None] = _LINK.split(text)
    at = len(parts) - 1
    while at >= 2 and parts[at - 1] is not None and _is_exception(parts[at - 2] or ""):
        if _is_named(parts[at], "TimeoutError") and _is_named(parts[at - 2], "CancelledError"):
            break
        at -= 2
    return parts[at] or "", at < len(parts) - 1


def _is_named(text: str | None, name: str) -> bool:
    headline = _headline(text or "")
    return headline is not None and headline[0].rpartition(".")[2] == name


def _is_exception(text: str) -> bool:
    """Whether it shows what was raised; if a traceback is cut, that may be missing from its first exception."""
    return _headline(text) is not None or _FIRST_MEMBER.search(text) is not None


_FIRST_MEMBER = re.compile(r"^(?P<indent> *)\+-\+-+ 1 -+$", re.MULTILINE)


def _first_member(text: str) -> str | None:
    """Return the text of the first member of an exception group; None for any other exception."""
    # Most texts have no group, and to search for the whole line takes much longer.
    found = _FIRST_MEMBER.search(text) if "+-+-" in text else None
    if found is None:
        return None
    indent = len(found["indent"]) + 2
    margin, end = f"{' ' * indent}| ", f"{' ' * indent}+---"
    member: list[str] = []
    for line in text[found.end() + 1 :].split("\n"):
        if line.startswith(end):
            break
        # A group inside the group has its own margin further right; that line stays as it is.
        member.append(line[len(margin) :] if line.startswith(margin.rstrip()) else line)
    return "\n".join(member)


_HEADLINE = re.compile(r"^(?P<type>[^\W\d][\w.<>]*)(?::\s(?P<message>.*)|:?$)", re.MULTILINE | re.DOTALL)


def _headline(text: str) -> tuple[str, str] | None:
    """Return the type and the message that stand below the frames of an exception."""
    after = 0
    for frame in _FRAME.finditer(text):
        after = frame.end()
    found = _HEADLINE.search(text, after)
    if found is None:
        return None
    # The traceback of another process ends with the quotes in which `concurrent.futures` puts it.
    return found["type"], (found["message"] or "").removesuffix('"""').strip()


# -------------------------------------------------------------------------------------------------------- places

# It begins with a literal, for which Python searches ten times as fast as for the beginning of a line.
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$', re.MULTILINE)


def own_place(inner: str, whole: str) -> CodePlace | None:
    """Return the last place in the user's own code, in the innermost exception if it has one, else in all of them.

    Own code is code that is not installed. If there is none, as where a project is deployed as a wheel, it is the
    package of the first frame of the last exception, which is that of the task.
    """
    last = _LINK.split(whole)[-1] or ""
    # Most errors show one exception, which then is all of them.
    frames = {text: [(each, owner_of(each["file"])) for each in _FRAME.finditer(text)] for text in {inner, whole, last}}
    task = next((owner for _, owner in frames[last] if owner is not None), None)
    for owner_sought in ("", task):
        for text in (inner, whole):
            for frame, owner in reversed(frames[text]):
                if owner is not None and owner == owner_sought:
                    return CodePlace(frame["file"], int(frame["line"]), frame["function"])
    return None
