"""What variables say in text: durations and switches."""

from __future__ import annotations

import re

from headgate.errors import DeclarationError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([smhdw]?)\s*")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def seconds_in(text: str) -> float | None:
    """The seconds of `90`, `1.5m` or `7d` (s, m, h, d, w); None for what is no duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def parse_switch(text: str, name: str) -> bool:
    """Whether it says on or off. Raises DeclarationError with the `name` of what says it."""
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise DeclarationError(f"{name}={text!r} must be one of {', '.join(_SWITCH)}") from None
