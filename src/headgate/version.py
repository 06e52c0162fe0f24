"""The version of Headgate."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """The version that is installed; empty where Headgate is run from its source alone."""
    try:
        return metadata.version("headgate")
    except metadata.PackageNotFoundError:
        return ""
