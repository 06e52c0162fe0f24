"""The logging of a program stays its own while a node keeps what its jobs log."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.tasks.context import add_listener, remove_listener
from tests.until import patient

PROGRAM = Path(__file__).with_name("bare_logging.py")

FIRST = "kept ['in a job', 'own line']"
LATER = "kept ['in a job', 'too low for a job', 'own line']"


CONFIGURED = ["own set up", "own in a job", "own too low for a job", "own after"]


@pytest.mark.parametrize(
    ("then", "printed", "kept"),
    [
        ("not at all", ["in a job", "after"], [FIRST, FIRST]),
        ("configured", CONFIGURED, [FIRST, LATER]),
        ("forced", CONFIGURED, [FIRST, LATER]),
    ],
)
def test_logging_works_while_a_node_runs_as_it_does_without(then: str, printed: list[str], kept: list[str]) -> None:
    """A handler at the root once had logging take itself for configured: errors vanished, basicConfig() did nothing."""
    done = subprocess.run(
        [sys.executable, PROGRAM, then],
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stderr.splitlines() == ["before", "while it runs", "in a job", *printed]
    assert done.stdout.splitlines() == [*kept, "restored True"]


def test_another_patch_of_the_same_logging_method_stays_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tools that watch for errors do, from anywhere in the life of a node."""
    received: list[str] = []
    theirs: list[str] = []
    hears: Callable[[logging.LogRecord], None] = lambda record: received.append(record.getMessage())  # noqa: E731
    log = logging.getLogger("shop")
    add_listener(hears)
    below = logging.Logger.callHandlers

    def stands_in(logger: logging.Logger, record: logging.LogRecord) -> None:
        theirs.append(record.getMessage())
        below(logger, record)

    monkeypatch.setattr(logging.Logger, "callHandlers", stands_in)
    log.error("one")
    remove_listener(hears)
    log.error("two")
    add_listener(hears)
    log.error("three")
    monkeypatch.undo()
    remove_listener(hears)
    log.error("four")
    assert (received, theirs) == (["one", "three"], ["one", "two", "three"])
