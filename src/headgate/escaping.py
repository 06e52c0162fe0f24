"""Escaping of untrusted text for display: no character of it controls a terminal or forges a line.

These functions escape the characters that Python counts as unprintable: control characters, line and paragraph
separators, characters that change the direction of text (bidi), and invisible ones.
"""

from __future__ import annotations

import json
import re

INDENT = "    "


def one_line(text: str) -> str:
    r"""Return the text as one line: every unprintable character is escaped, including line ends (`\n`)."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable(text: str) -> str:
    """Return the text with every unprintable character escaped, except line ends."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def indented(text: str) -> str:
    """Return `printable(text)` with every line but the first indented, so that none appears as a new entry."""
    return printable(text).replace("\n", f"\n{INDENT}")


def as_fields(**fields: str | int) -> str:
    r"""Return fields as `name=value`, for programs that read log lines; a text that needs it is quoted as in JSON."""
    return " ".join(
        f"{name}={value if isinstance(value, int) or _BARE.fullmatch(value) else json.dumps(one_line(value))}"
        for name, value in fields.items()
    )


_BARE = re.compile(r"[\w.:@/+*-]+", re.ASCII)


def _escaped(char: str) -> str:
    return repr(char)[1:-1]
