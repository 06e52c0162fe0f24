"""Draining: until when a node goes on that ends by itself."""

from __future__ import annotations

from typing import Literal

Drain = Literal["ready", "all"]
"""Until nothing runs and nothing could start now; or until nothing waits for a limit or for its time either."""

LOOK_EVERY = 0.1
"""Seconds between two looks of a node that has nothing to do."""
