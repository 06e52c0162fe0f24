"""Names that a package imports from its modules when they are first used.

PYTEST_DONT_REWRITE: see `headgate`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from opcode import opmap
from types import FrameType
from typing import Any


def lazy_names(
    package: dict[str, Any], places: Mapping[str, str], names: Iterable[str], foreign: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the globals of a package whose `names` are in modules, by `places`.

    `foreign` is the module whose `IMPORTS` say what to write instead of names that the package does not have.
    """

    def get(name: str) -> object:
        place = places.get(name)
        if place is None and (instead := import_module(foreign).IMPORTS.get(name)):
            message = f"{package['__name__']} has no {name!r}; {instead}"
            if _imports(sys._getframe(1)):
                # It would replace the message of an AttributeError by its own.
                raise ImportError(message, name=name)
            raise AttributeError(message)
        if place is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(place), name)
        return value

    def listed() -> list[str]:
        return sorted({*package, *names})

    return get, listed


def places_of(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name, from the names of each module, with spaces between them."""
    return {name: module for module, names in modules.items() for name in names.split()}


def _imports(frame: FrameType) -> bool:
    """Whether a frame is at `from package import name`, and not at `hasattr(package, name)`, for example."""
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
