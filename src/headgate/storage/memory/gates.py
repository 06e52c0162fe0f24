"""What the gates of tasks looked like in each release."""

from __future__ import annotations

from collections.abc import Mapping


class _Gate:
    __slots__ = ("is_done", "last_seen")

    def __init__(self) -> None:
        self.is_done = False
        self.last_seen = 0


class Gates:
    """The gates of each subject, in the order in which they were first seen, and those that are done.

    `newest` has the newest one of each; it is another object after each change.
    """

    def __init__(self) -> None:
        self.newest: Mapping[str, str] = {}
        self._seen: dict[str, dict[str, _Gate]] = {}

    def note(self, gates: Mapping[str, str], wall: int, lives: int) -> dict[str, bool]:
        """Note them; the subjects whose newest gate this is that lives, and whether their backlog is to be moved."""
        to_do: dict[str, bool] = {}
        newest: dict[str, str] = {}
        for subject, name in gates.items():
            seen = self._seen.setdefault(subject, {})
            if name not in seen:
                for other in seen.values():
                    other.is_done = False
                seen[name] = _Gate()
            own = seen[name]
            own.last_seen = wall
            alive = [each for each, gate in seen.items() if gate is own or gate.last_seen > wall - lives]
            newest[subject] = alive[-1]
            if alive[-1] == name:
                to_do[subject] = not own.is_done
        if any(self.newest.get(subject) != name for subject, name in newest.items()):
            self.newest = {**self.newest, **newest}
        return to_do

    def done(self, gates: Mapping[str, str]) -> None:
        """The backlog of these gates has been moved."""
        for subject, name in gates.items():
            for each, gate in self._seen[subject].items():
                gate.is_done = each == name
