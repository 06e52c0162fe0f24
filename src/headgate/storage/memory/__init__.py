"""Keeps jobs in this process: nothing survives it. The storage of `memory://`, and what tests run on.

A lane holds its jobs in order, a bucket the lanes behind it, a group the lanes and buckets that one look of a claim
concerns. Whatever leaves one of these orders early (a cancelled job, a lane that moved) stays in it as a stale entry,
recognised and dropped when it is met; so no verb ever searches, and what waits costs nothing.
"""

from headgate.storage.memory.storage import MemoryStorage

__all__ = ["MemoryStorage"]
