"""A job draft: a job that is about to be stored, as the functions around the enqueue see and change it."""

from __future__ import annotations

from typing import Any


class JobDraft:
    """A job that is about to be stored, for functions of `@app.around_enqueue`.

    `arguments` (by name, as they were passed, without defaults) and `headers` may be changed until `enqueue()` is
    called, which checks them. `id` is None until it has stored the job; under a `unique_key` it may be the id of the
    job that was there before.
    """

    __slots__ = ("arguments", "headers", "id", "queue", "task")

    def __init__(self, task: str, queue: str, arguments: dict[str, Any], headers: dict[str, str]) -> None:
        self.task: str = task
        self.queue: str = queue
        self.arguments: dict[str, Any] = arguments
        self.headers: dict[str, str] = headers
        self.id: str | None = None

    def __repr__(self) -> str:
        return f"JobDraft({self.task!r}, queue={self.queue!r}, id={self.id!r})"
