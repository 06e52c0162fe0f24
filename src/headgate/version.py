"""The version of Headgate. The build reads it from here, so that a program need not look for what is installed."""

from __future__ import annotations

__version__ = "0.1.0"
