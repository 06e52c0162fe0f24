"""The valid names of tasks and queues."""

from __future__ import annotations

import re

from headgate.errors import DeclarationError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


def require_name(name: str, kind: str) -> None:
    """Raise DeclarationError unless it is a valid name of a task or a queue."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r:.80} must be 1 to 200 letters, digits and _ . : / -, the first a letter, digit or _"
        )
