"""Buckets in Redis and Valkey."""

from headgate.errors import DeclarationError

try:
    import hiredis  # noqa: F401  # the modules of this package use both
    import redis  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("redis", "hiredis"):
        raise
    raise DeclarationError(
        f"limits in Redis, and gates, need the {error.name} package, which is missing; pip install 'headgate[redis]'"
    ) from None
