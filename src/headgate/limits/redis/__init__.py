"""Buckets in Redis and Valkey."""

from headgate.errors import needing

with needing("limits in Redis, and gates, need", "redis", "hiredis", install="'headgate[redis]'"):
    import hiredis  # noqa: F401  # the modules of this package use both
    import redis  # noqa: F401
