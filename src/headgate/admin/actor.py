"""The default actor of what is done through the Admin."""

from __future__ import annotations

import functools
import getpass
import os
import socket


@functools.cache
def this_process() -> str:
    """Return the user that this process runs as, and its machine: `ada@web-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
