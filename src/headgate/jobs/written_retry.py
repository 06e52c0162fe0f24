"""Parsing of a retry policy from an environment variable."""

from __future__ import annotations

from typing import Any

from headgate.arguments import duration_in
from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.jobs.retry import RetryPolicy
from headgate.jobs.written import parse_switch


def parse_retry(text: str, name: str = "HEADGATE_RETRY") -> RetryPolicy:
    """Parse `5`, `retries=5,base=2s,cap=10m,jitter=off`, `retries=5,delay=30s` or `delays=1s+1m+1h`.

    Filters and functions have no text form; use code for them. Raises DeclarationError with the `name` of the variable.
    """
    options: dict[str, Any] = {}
    is_number = "=" not in text
    for part in [text] if is_number else text.split(","):
        word, _, value = (piece.strip() for piece in (f"retries={part}" if is_number else part).partition("="))
        match word:
            case "retries" if value.isdecimal():
                options[word] = int(value)
            case "base" | "cap" | "delay" if (length := duration_in(value)) is not None:
                options[word] = length / SECOND
            case "delays" if None not in (delays := [duration_in(each) for each in value.split("+")]):
                options[word] = [length / SECOND for length in delays if length is not None]
            case "jitter":
                options[word] = parse_switch(value, f"{name}: jitter")
            case _:
                raise DeclarationError(
                    f"{name}={text!r}: {part.strip()!r} cannot be read; write 5, retries=5,base=2s,cap=10m,jitter=off, "
                    "retries=5,delay=30s, or delays=1s+1m+1h (s, m, h, d, w)"
                )
    return RetryPolicy(**options)
