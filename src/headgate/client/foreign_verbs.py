"""The verbs of other job queues, and what to write instead."""

from __future__ import annotations

from typing import NoReturn

_INSTEAD = {
    "delay": "enqueue(…)",
    "apply_async": "using(delay=…, queue=…).enqueue(…)",
    "send": "enqueue(…)",
    "send_with_options": "using(delay=…, queue=…).enqueue(…)",
    "kiq": "enqueue(…)",
    "defer": "enqueue(…)",
    "defer_async": "enqueue(…)",
    "perform_async": "enqueue(…)",
    "s": "call(…)",
    "si": "call(…)",
    "signature": "call(…)",
}


def raise_no_attribute(owner: str, task: str, name: str, *, is_sync: bool = False) -> NoReturn:
    """Raise AttributeError for an unknown attribute; for a verb of another queue, with Headgate's verb."""
    instead = _INSTEAD.get(name)
    if instead is None:
        raise AttributeError(f"{owner!r} object has no attribute {name!r}", name=name)
    if is_sync:
        example = f"{task}.{instead.replace('enqueue', 'sync.enqueue')}"
    elif instead.startswith("call"):
        example = f"{task}.{instead}"
    else:
        # `using` comes before `sync`: task.using(delay=5).sync.enqueue(…)
        blocking = instead.replace("enqueue", "sync.enqueue")
        example = f"await {task}.{instead}, or {task}.{blocking} in code that cannot await"
    raise AttributeError(f"task {task!r} has no .{name}(); write {example}", name=name)


class MissingVerb:
    """An attribute of handler classes that raises AttributeError on access, with what to write instead."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise_no_attribute(owner.__name__, owner.__name__, self._name)


def raise_not_callable(task: str, name: str) -> NoReturn:
    """Raise TypeError for a task that was called like a function."""
    verb = "" if task.endswith(".sync") else "await "
    raise TypeError(
        f"calling task {name!r} enqueues nothing and runs nothing; write {verb}{task}.enqueue(…) to enqueue a job, or "
        f"{task.removesuffix('.sync')}.function(…) to run the function here"
    )
