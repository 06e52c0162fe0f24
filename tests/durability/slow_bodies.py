"""A function for process tasks in a module that takes a while to import, where a variable says so."""

from __future__ import annotations

import os
import time

SLOW = "HEADGATE_TEST_SLOW_IMPORT"

time.sleep(float(os.environ.get(SLOW, "0")))


def pid() -> int:
    return os.getpid()
