"""Whose code a file is: the user's, an installed package's, Python's or Headgate's."""

from __future__ import annotations

import re
import sysconfig
from functools import lru_cache
from pathlib import Path

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/](?P<package>[^\\/]+)")

_STANDARD = re.compile(r"[\\/]lib(?:64)?[\\/](?:python|pypy)3[^\\/]*[\\/]|[\\/]Python3[^\\/]*[\\/]Lib[\\/]")

_STANDARD_HERE = sysconfig.get_path("stdlib")

_HEADGATE_HERE = str(Path(__file__).parents[1])


@lru_cache(10_000)
def owner_of(file: str) -> str | None:
    """Return the installed package of a file, "" for one that is not installed, None for Python's and Headgate's."""
    installed = _INSTALLED.search(file)
    if installed is not None:
        return None if installed["package"] == "headgate" else installed["package"]
    is_python = file.startswith("<") or _STANDARD.search(file) is not None or _is_below(file, _STANDARD_HERE)
    return None if is_python or _is_below(file, _HEADGATE_HERE) else ""


def _is_below(file: str, folder: str) -> bool:
    return file.startswith((f"{folder}/", f"{folder}\\"))
