"""Names that a package imports from its modules when they are first used.

PYTEST_DONT_REWRITE: see `headgate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: dict[str, Any],
    places: Mapping[str, str],
    names: Iterable[str],
    foreign: str | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the globals of a package whose `names` are in modules, by `places`.

    `foreign` is the module whose `IMPORTS` say what to write instead of names that the package does not have.
    """

    def get(name: str) -> object:
        place = places.get(name)
        if place is None and foreign and (instead := import_module(foreign).IMPORTS.get(name)):
            # `from package import name` replaces the message of an AttributeError by its own.
            raise ImportError(f"{package['__name__']} has no {name!r}; {instead}", name=name)
        if place is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(place), name)
        return value

    def listed() -> list[str]:
        return sorted({*package, *names})

    return get, listed
