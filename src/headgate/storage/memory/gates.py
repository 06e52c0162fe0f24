"""What the gates of tasks looked like in each release."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.storage.protocol import GATE_LIVES


class _Gate:
    __slots__ = ("is_done", "last_seen")

    def __init__(self, *, is_done: bool) -> None:
        self.is_done = is_done
        self.last_seen = 0


class Gates:
    """The signatures of each task's gate, in the order in which they were first seen, and those that are done."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, _Gate]] = {}

    def note(self, signatures: Mapping[str, str], wall: int) -> dict[str, bool]:
        """Note them; the tasks whose newest gate this is that lives, and whether their backlog is to be moved to it."""
        newest: dict[str, bool] = {}
        for task, signature in signatures.items():
            seen = self._seen.setdefault(task, {})
            if signature not in seen:
                for other in seen.values():
                    other.is_done = False
                # The first gate that a task ever had needs no backlog moved.
                seen[signature] = _Gate(is_done=not seen)
            own = seen[signature]
            own.last_seen = wall
            alive = [gate for gate in seen.values() if gate is own or gate.last_seen > wall - GATE_LIVES]
            if alive[-1] is own:
                newest[task] = not own.is_done
        return newest

    def done(self, signatures: Mapping[str, str]) -> None:
        """The backlog of these gates has been moved."""
        for task, signature in signatures.items():
            for each, gate in self._seen[task].items():
                gate.is_done = each == signature
