"""Time zones by their names."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from headgate.errors import DeclarationError
from headgate.suggestion import did_you_mean


def zone_of(name: str, where: str) -> ZoneInfo:
    """Return the zone of that name. Raises DeclarationError for an unknown zone."""
    if not isinstance(name, str):
        raise DeclarationError(f"{where}: tz={name!r} must be the name of a zone, such as 'Europe/Rome' or 'UTC'")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # An OSError is a folder of zones ("Europe") or a name too long for a file.
        hint = did_you_mean(name, available_timezones())
        raise DeclarationError(
            f"{where}: there is no time zone {name!r}{hint} Use a name such as 'Europe/Rome' or 'UTC'"
        ) from None
