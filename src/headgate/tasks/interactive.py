"""Interactive sessions, in which a cell that declares a task is run again: notebooks, IPython, the prompt of Python."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any


def is_interactive(function: Callable[..., Any]) -> bool:
    """Return whether a function was defined in an interactive session, and not in a file."""
    if getattr(function, "__module__", None) != "__main__":
        return False
    return hasattr(builtins, "__IPYTHON__") or not hasattr(sys.modules["__main__"], "__file__")
