"""Time zones by their names."""

from __future__ import annotations

from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from headgate.errors import DeclarationError


def zone_of(name: str, where: str) -> ZoneInfo:
    """Return the zone of that name. Raises DeclarationError for an unknown zone."""
    if not isinstance(name, str):
        raise DeclarationError(f"{where}: tz={name!r} must be the name of a zone, such as 'Europe/Rome' or 'UTC'")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # An OSError is a folder of zones ("Europe") or a name too long for a file.
        similar = get_close_matches(name, available_timezones(), n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else "use a name such as 'Europe/Rome' or 'UTC'"
        raise DeclarationError(f"{where}: there is no time zone {name!r}; {hint}") from None
