"""The memory that a process occupies."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def resident_memory(pid: int) -> int:
    """Return the bytes of memory that a process occupies, without what is swapped out; 0 if they cannot be read.

    It may block for some milliseconds, so it is called in threads.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # No /proc, as on macOS.
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        found = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True, text=True, timeout=5
        )
        return int(found.stdout) * 1024
    return 0
