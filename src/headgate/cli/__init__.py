"""The `headgate` command: one file for each noun, over what the app and its admin offer."""

import os
import signal
import sys


def end_at_once(_number: int, _frame: object) -> None:
    """End this process, which has claimed nothing yet."""
    os._exit(0)


# Before a worker imports anything else: the kernel drops a signal to the first process of a container that does not
# handle it. Not by sys.argv alone: what a handler starts with multiprocessing gets that of the worker and imports this.
if sys.argv[0].endswith(("/headgate", "/headgate/__main__.py")) and sys.orig_argv[-len(sys.argv) :][1:2] == ["worker"]:
    signal.signal(signal.SIGTERM, end_at_once)
