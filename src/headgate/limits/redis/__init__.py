"""Buckets in Redis and Valkey."""

from headgate.errors import DeclarationError

try:
    import redis  # noqa: F401  # the modules of this package use it
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise DeclarationError(
        "limits in Redis, and gates, need the redis package, which is missing; pip install 'headgate[redis]'"
    ) from None
