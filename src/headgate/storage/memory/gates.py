"""What the gates of tasks looked like in each release."""

from __future__ import annotations

from collections.abc import Mapping


class Gates:
    """The signatures of each task's gate, in the order in which they were first seen, and those that are done."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, bool]] = {}

    def note(self, signatures: Mapping[str, str]) -> dict[str, bool]:
        """Note them; the tasks whose newest gate this is, and whether their backlog is still to be moved to it."""
        for task, signature in signatures.items():
            seen = self._seen.setdefault(task, {})
            # The first gate that a task ever had needs no backlog moved.
            seen.setdefault(signature, not seen)
        return {
            task: not self._seen[task][signature]
            for task, signature in signatures.items()
            if next(reversed(self._seen[task])) == signature
        }

    def done(self, signatures: Mapping[str, str]) -> None:
        """The backlog of these gates has been moved."""
        for task, signature in signatures.items():
            self._seen[task][signature] = True
