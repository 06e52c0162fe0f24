"""What becomes of a graph of jobs, as one would explain it: each job looks at all its leaders, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

State = Literal["blocked", "waiting", "succeeded", "failed", "cancelled", "unrun", "unneeded"]
"""A job that runs counts as waiting. "unrun" and "unneeded" are cancelled: its leaders did not end as it needs."""


class Node:
    """A job, with its leaders and which end of them it needs; or a batch, with its members."""

    def __init__(self, leaders: Sequence[Node] = (), on: str = "success", *, members: list[Node] | None = None) -> None:
        self.leaders = list(leaders)
        self.on = on
        self.members = members
        self.state: State = "blocked"
        self.id = ""

    def grow(self, member: Node) -> None:
        assert self.members is not None
        self.members.append(member)

    @property
    def end(self) -> str | None:
        """How it ended: succeeded, failed or cancelled; None while it is not final."""
        if self.members is not None:
            ends = [member.end for member in self.members]
            if None in ends:
                return None
            return "failed" if "failed" in ends else "cancelled" if "cancelled" in ends else "succeeded"
        if self.state in ("blocked", "waiting"):
            return None
        return self.state if self.state in ("succeeded", "failed") else "cancelled"

    def follows_only(self, leader: Node) -> bool:
        return bool(self.leaders) and all(each is leader for each in self.leaders)

    @property
    def is_held_back(self) -> bool:
        return any(leader.end is None for leader in self.leaders)

    @property
    def may_run(self) -> bool:
        """Whether its leaders, which are final, ended as it needs."""
        have_succeeded = all(leader.end == "succeeded" for leader in self.leaders)
        return self.on == "final" or not self.leaders or have_succeeded == (self.on == "success")


def settle(nodes: Sequence[Node]) -> None:
    """Let every job react to the ends of its leaders, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for node in nodes:
            if node.members is None and node.state == "blocked" and not node.is_held_back:
                node.state = "waiting" if node.may_run else "unneeded" if node.on == "failure" else "unrun"
                changed = True
            elif node.state == "unrun" and node.is_held_back:
                node.state = "blocked"
                changed = True


def retry(node: Node) -> bool:
    """Retry a job that failed or was cancelled; False if that is refused."""
    if not node.is_held_back and not node.may_run:
        return False
    node.state = "blocked" if node.is_held_back else "waiting"
    return True


def cancelled_with(batch: Node, nodes: Sequence[Node]) -> list[Node]:
    """Return the jobs to cancel with a batch: in it, and each that then waits for nothing else, again and again."""
    reached = {id(batch)}
    inside = [batch]
    while inside:
        members = [member for each in inside for member in each.members or () if member.end is None]
        reached |= {id(member) for member in members}
        inside = [member for member in members if member.members is not None]
    changed = True
    while changed:
        changed = False
        for node in nodes:
            if id(node) in reached or node.end is not None:
                continue
            waits_for = [each for each in node.members or node.leaders if each.end is None]
            is_next = all(id(each) in reached for each in waits_for) if waits_for else node.follows_only(batch)
            if is_next:
                reached.add(id(node))
                changed = True
    return [node for node in nodes if id(node) in reached and node.members is None and node.end is None]


def is_cyclic(nodes: Sequence[Node]) -> bool:
    """Whether some of them wait for each other."""
    left = list(nodes)
    while left:
        free = [node for node in left if not any(each in left for each in (*node.leaders, *(node.members or ())))]
        if not free:
            return True
        left = [node for node in left if node not in free]
    return False
