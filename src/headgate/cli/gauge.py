"""Bars and sparklines: in blocks where the terminal can show them, in plain characters elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-=+*#@"


def can_show(text: str) -> bool:
    """Return whether the encoding of the standard output has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def bar(share: float, width: int) -> str:
    """Return a bar of `width` characters, filled by `share` (0 to 1)."""
    share = min(max(share, 0.0), 1.0)
    if not can_show(EIGHTHS):
        filled = round(share * width)
        return "#" * filled + "." * (width - filled)
    eighths = round(share * width * 8)
    if share and not eighths:
        eighths = 1
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)


def spark(values: Sequence[float]) -> str:
    """Return one character for each value, scaled to the highest; a space for 0."""
    levels = LEVELS if can_show(LEVELS) else PLAIN_LEVELS
    highest = max(values, default=0) or 1
    return "".join(" " if not value else levels[min(7, int(value / highest * 7.999))] for value in values)


def budget(used: int | None, available: int | None, width: int = 10, *, numbers: bool = True) -> str | None:
    """Return the used part of a budget as a bar, with its numbers; None if it is unknown."""
    if used is None or available is None:
        return None
    total = used + available
    found = bar(used / total if total else 0.0, width)
    return f"{found} {used}/{total}" if numbers else found
