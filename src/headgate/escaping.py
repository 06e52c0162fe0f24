"""Escaping of text that others wrote, for people to read: no character of it steers a terminal or forges a line.

Python counts as unprintable what these functions escape: control characters, line and paragraph separators, characters
that change the direction of text (bidi), and invisible ones.
"""

from __future__ import annotations

INDENT = "    "


def one_line(text: str) -> str:
    r"""Return the text as one line: whatever is not printable is escaped, line ends too (`\n`)."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable(text: str) -> str:
    """Return the text with its line ends as they are, and everything else that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def indented(text: str) -> str:
    """Return `printable(text)` with every line but the first indented, so that none of them passes for a new entry."""
    return printable(text).replace("\n", f"\n{INDENT}")


def _escaped(char: str) -> str:
    return repr(char)[1:-1]
