"""Headgate: durable background jobs for Python with a budget per key.

PYTEST_DONT_REWRITE: pytest finds our plugin, and would otherwise warn where this is imported before pytest is.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.public import *  # noqa: F403
    from headgate.public import __all__ as __all__
else:
    # Loaded when the first name is asked for: the help, the version and each Tab in a shell take none of it.
    import importlib

    def __getattr__(name):
        if name != "__all__" and name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = importlib.import_module("headgate.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__():
        return sorted({*globals(), *importlib.import_module("headgate.public").__all__})
