"""Parsing of environment variables: switches."""

from __future__ import annotations

from headgate.errors import DeclarationError

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def parse_switch(text: str, name: str) -> bool:
    """Return True for on and False for off. Raises DeclarationError with the `name` of the variable."""
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise DeclarationError(f"{name}={text!r} must be one of {', '.join(_SWITCH)}") from None
