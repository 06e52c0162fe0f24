"""What becomes of a graph of jobs, as one would explain it: each job looks at all its leaders, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

State = Literal["blocked", "waiting", "succeeded", "failed", "cancelled", "skipped", "unrun"]
"""A job that runs counts as waiting. "unrun" is cancelled because of its leaders."""


def together(ends: Sequence[str | None]) -> str | None:
    """How a batch ends whose members, or a join whose leaders, end so; None while one of them is not final."""
    if None in ends:
        return None
    for worst in ("failed", "cancelled", "succeeded", "skipped"):
        if worst in ends:
            return worst
    return "succeeded"


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
        """How it ended: succeeded, failed, cancelled or skipped; None while it is not final."""
        if self.members is not None:
            return together([member.end for member in self.members])
        if self.state in ("blocked", "waiting"):
            return None
        return "cancelled" if self.state == "unrun" else self.state

    def follows_only(self, leader: Node) -> bool:
        return bool(self.leaders) and all(each is leader for each in self.leaders)

    @property
    def is_held_back(self) -> bool:
        return any(leader.end is None for leader in self.leaders)

    @property
    def may_run(self) -> bool:
        """Whether its leaders, which are final, ended as it needs."""
        ends = {"success": ("succeeded",), "failure": ("failed", "cancelled")}
        return self.on == "final" or not self.leaders or self.led_to in ends[self.on]

    @property
    def led_to(self) -> str | None:
        """How its leaders ended, taken together."""
        return together([leader.end for leader in self.leaders])


def settle(nodes: Sequence[Node]) -> None:
    """Let every job react to the ends of its leaders, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for node in nodes:
            if node.members is None and node.state == "blocked" and not node.is_held_back:
                went_wrong = node.led_to in ("failed", "cancelled")
                node.state = "waiting" if node.may_run else "unrun" if went_wrong else "skipped"
                changed = True
            elif node.state == "unrun" and node.is_held_back:
                node.state = "blocked"
                changed = True


def retry(node: Node, nodes: Sequence[Node]) -> bool:
    """Retry a final job; False if that is refused. What was cancelled because of it waits for its next end."""
    if node.state == "skipped" or (not node.may_run and node.led_to in ("failed", "cancelled")):
        return False
    node.state = "blocked"
    while back := [each for each in nodes if each.state == "unrun" and each.is_held_back]:
        for each in back:
            each.state = "blocked"
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
