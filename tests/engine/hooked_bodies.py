"""Functions of process tasks, and those that their child processes call at the start and the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headgate import current_job

started: list[str] = []


def start() -> None:
    started.append("started")


def stop() -> None:
    Path(os.environ["HEADGATE_TEST_FOLDER"], f"stopped-{os.getpid()}").touch()


def hang() -> None:
    time.sleep(3600)


def refuse() -> None:
    raise LookupError("no model")


def describe(text: str) -> str:
    return f"{text} {current_job().headers['tenant']} {started} {os.getpid()}"


def fail(text: str) -> None:
    raise ValueError(text)
