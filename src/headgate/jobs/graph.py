"""Graphs of jobs and batches: their layers, and the path that decides when the last of them ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

Leaders = Mapping[str, Sequence[str]]
"""Maps each job or batch id to the ids that it follows, without ids that are no keys."""


def depths(leaders: Leaders) -> dict[str, int]:
    """Return the number of edges on the longest path to each id; 0 for one that follows nothing. A cycle is at 0."""
    followers: dict[str, list[str]] = {id: [] for id in leaders}
    open_leaders = dict.fromkeys(leaders, 0)
    for id, before in leaders.items():
        for leader in before:
            if leader in followers:
                followers[leader].append(id)
                open_leaders[id] += 1
    found = dict.fromkeys(leaders, 0)
    ready = deque(id for id, count in open_leaders.items() if not count)
    while ready:
        id = ready.popleft()
        for follower in followers[id]:
            found[follower] = max(found[follower], found[id] + 1)
            open_leaders[follower] -= 1
            if not open_leaders[follower]:
                ready.append(follower)
    return {id: 0 if open_leaders[id] else depth for id, depth in found.items()}


def critical_path(leaders: Leaders, ended_at: Mapping[str, int | None]) -> list[str]:
    """Return the path that decides when the last one ends, in order: from each end back to the leader that ended last.

    Among what is not final (its `ended_at` is None), the longest chain decides. Ids without an entry in `ended_at` are
    deleted, so that nothing is known about their end. Empty without edges.
    """
    depth = depths(leaders)
    left: dict[str, int] = {}
    for id in sorted(leaders, key=depth.__getitem__):
        before = max((left.get(leader, 0) for leader in leaders[id]), default=0)
        left[id] = before + 1 if id in ended_at and ended_at[id] is None else 0

    def latest(ids: Iterable[str]) -> str | None:
        known = [id for id in ids if id in ended_at]
        return max(known, key=lambda id: (left[id], ended_at[id] or 0, id), default=None)

    leading = {leader for before in leaders.values() for leader in before}
    last = latest(id for id, before in leaders.items() if before and id not in leading)
    path: list[str] = []
    while last is not None and last not in path:
        path.append(last)
        last = latest(leaders.get(last, ()))
    return path[::-1]
