"""Lost claims: jobs that a node owns in the store without holding them, because the reply of a claim was lost."""

from __future__ import annotations

from collections.abc import Container, Mapping


class LostClaims:
    """Compares, at each heartbeat, the jobs that a node owns with those it holds.

    A job is lost if two checks in a row find it unknown with the same fence, unless a claim is pending that was sent
    before the first check. A job with another fence was returned and claimed again meanwhile; its reply may be pending.
    """

    def __init__(self) -> None:
        self._unknown: set[tuple[str, int]] = set()
        self._checked_at = 0

    def among(
        self, owned: Mapping[str, int], known: Container[str], *, claiming_since: int | None, now: int
    ) -> list[tuple[str, int]]:
        """Return the lost jobs with their fences; `claiming_since` is when the pending claim was sent, or None."""
        unknown = {(id, fence) for id, fence in owned.items() if id not in known}
        is_pending = claiming_since is not None and claiming_since <= self._checked_at
        lost = set() if is_pending else unknown & self._unknown
        self._unknown, self._checked_at = unknown, now
        return sorted(lost)
