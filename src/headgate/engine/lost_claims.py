"""Lost claims: jobs that the store has a node own, and of which it never heard, because the reply was lost."""

from __future__ import annotations

from collections.abc import Container, Mapping


class LostClaims:
    """Compares what a node owns, at each of its beats, with what it has heard of.

    Only what was unheard of twice is lost, and not while a claim may be on its way that began before the first time.
    The same claim: one that was handed back meanwhile may have been made anew, and be on its way.
    """

    def __init__(self) -> None:
        self._unheard: set[tuple[str, int]] = set()
        self._looked_at = 0

    def among(
        self, owned: Mapping[str, int], heard: Container[str], *, claiming_since: int | None, now: int
    ) -> list[tuple[str, int]]:
        """The jobs that are lost, with their fences; `claiming_since` when the claim began that is under way."""
        unheard = {(id, fence) for id, fence in owned.items() if id not in heard}
        is_on_its_way = claiming_since is not None and claiming_since <= self._looked_at
        lost = set() if is_on_its_way else unheard & self._unheard
        self._unheard, self._looked_at = unheard, now
        return sorted(lost)
